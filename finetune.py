"""Fine-tune BERT under one regime: ``accelerate launch finetune.py --freeze embeddings``."""

import sys

if __name__ == "__main__":
    try:
        from toolkit.cli import finetune_main
    except ModuleNotFoundError as missing:
        print(
            f"error: {missing.name} is not installed in {sys.prefix}: source .venv/bin/activate (make demo makes it), "
            "or pip install --editable . in the root of the repository",
            file=sys.stderr,
        )
        sys.exit(2)
    finetune_main()
