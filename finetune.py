"""Fine-tune BERT under one regime: ``accelerate launch finetune.py --freeze embeddings``."""

from toolkit.cli import finetune_main

if __name__ == "__main__":
    finetune_main()
