"""The files of a run directory, written as training goes; the manifest last."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig, recipe_of
from toolkit.data.batches import EncodedTask, WordTokens
from toolkit.data.splits import Split
from toolkit.models.classifier import Loaded, tied_tables
from toolkit.models.heads import HEAD_DESCRIPTIONS, MaskedHead
from toolkit.models.lora import merged_state, save_adapter
from toolkit.models.new_tokens import whole_state
from toolkit.models.regimes import HEAD, Regime, layer_norm_eps, locate_embeddings, word_table
from toolkit.snapshots.files import disk_errors, sha256_of_array, write_tensors
from toolkit.snapshots.logs import ADAMW, SGD, OptimizerLog
from toolkit.snapshots.run_writer import RunWriter, facts_of, read_git_commit, read_versions
from toolkit.snapshots.snapshot import read_vocabulary, to_array
from toolkit.snapshots.unfinished import TABLES, State
from toolkit.training.accelerators import describe_devices, peak_memory_bytes
from toolkit.training.evaluation import predict, score_split
from toolkit.training.features import LinearProbe
from toolkit.training.floors import Floors, commonest_label
from toolkit.training.live_drift import as_columns
from toolkit.training.loop import Moment
from toolkit.training.optimizer import BETAS, EPS, decay_by_name, group_parameters, is_fused
from toolkit.training.step_recorder import IS_OUTPUT_TOO, Recorder


def fingerprint(model: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Parameter name to the sha256 of its fp32 values: equal exactly when the values are bit-identical."""
    parameters, names = dict(model.named_parameters()), list(names)

    def digest(name: str) -> str:
        return sha256_of_array(parameters[name].detach().to("cpu", torch.float32).numpy())

    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing lets other threads run
        return dict(zip(names, pool.map(digest, names), strict=True))


class Saver:
    """Writes one run directory as its moments come; lives on the main process."""

    def __init__(
        self,
        writer: RunWriter,
        config: RunConfig,
        data: EncodedTask,
        loaded: Loaded,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        """``device``: where training will run; the model may still be elsewhere."""
        self.writer, self.config, self.data, self.loaded, self.recorder = writer, config, data, loaded, recorder
        self.device = device
        self.groups = group_parameters(loaded.model, config)
        self.scores: list[dict[str, Any]] = []
        self.predictions: list[pd.DataFrame] = []
        writer.facts = facts_of(data.position_offset, layer_norm_eps(loaded.model.backbone, loaded.family))
        writer.write_config(config)
        self.embeddings = locate_embeddings(loaded.model.backbone)
        self.not_replayed = self.embeddings.why_not_replayed
        self._trained = [name for name, parameter in self.embeddings.parameters.items() if parameter.requires_grad]
        self._written_steps: int | None = None
        """Of which the tables and logs are that this process has written."""
        self._num_ends = 0
        """Ends of epochs after the first step that have been written, or are being."""
        added = () if loaded.added is None else loaded.added["tokens"]
        num_rows = word_table(loaded.model.backbone).num_embeddings
        writer.write_vocabulary(read_vocabulary(loaded.tokenizer, num_rows, added))

    def restore(self, state: State) -> None:
        """Take up the scores and predictions that ``state`` holds: their files may have changed, or be ahead of it."""
        contents = self.writer.tables = {
            name: state.tensors[TABLES + name].tobytes() for name in ("scores", "predictions")
        }
        scores, predictions = (pd.read_parquet(BytesIO(content)) for content in contents.values())
        self.scores = [{str(name): value for name, value in row.items()} for row in scores.to_dict("records")]
        self.predictions = [predictions]

    def save_snapshot(self, moment: Moment, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Begin to write a snapshot; ``tensors`` must not change any more."""
        self.writer.background.wait()
        if self._num_ends:
            self._warn_of_stillness()
        self._num_ends += moment.is_epoch_end and moment.step > 0
        write = partial(self.writer.write_snapshot, is_epoch_end=moment.is_epoch_end)
        self.writer.background.start(lambda: write(moment.epoch, moment.step, tensors))

    def _warn_of_stillness(self) -> None:
        """Warn, once, of embedding parameters that are trained and yet are in all snapshots what they were at first."""
        moved = self.writer.moved_parameters()
        for name in [name for name in self._trained if name not in moved]:
            exposure = self.recorder.exposure()
            first_row = self.recorder.first_rows.get(name, 0)
            table_log = None if exposure is None else exposure.tables.get(name)
            is_used = table_log is None or bool((table_log.rows >= first_row).any())
            reason = "each update was 0 or lost to the rounding of float32; raise the learning rate"
            reason = reason if is_used else "no text used one of its trained rows; are the added tokens in the texts?"
            warnings.warn(f"{name}: trainable, but exactly as before training: {reason}", stacklevel=2)
        self._trained = [name for name in self._trained if name in moved]

    def discard_snapshot(self, moment: Moment) -> None:
        """Take the snapshot of a moment away again at which training turns out to have diverged."""
        self.writer.discard_snapshot(moment.epoch, moment.step, is_epoch_end=moment.is_epoch_end)

    def save_outputs(self, moment: Moment, outputs: Mapping[str, NDArray[np.float32]]) -> list[Mapping[str, Any]]:
        """The scores of an epoch end; begin to write them, predictions, exposure and optimizer log."""
        rows = [self._score(moment, split, split_outputs) for split, split_outputs in outputs.items()]
        self.scores += rows
        self.predictions += [self._predict(moment, split, split_outputs) for split, split_outputs in outputs.items()]
        self._write_outputs()
        return list(rows)

    def _write_outputs(self) -> None:
        """Begin to write scores and predictions, exposure and optimizer log so far."""
        scores, predictions = pd.DataFrame(self.scores), list(self.predictions)
        exposure, log = self.recorder.exposure(), self._optimizer_log()
        self._written_steps = self.recorder.num_steps

        def write() -> None:
            self.writer.write_scores(scores)
            content = self.writer.write_predictions(pd.concat(predictions, ignore_index=True))
            self.writer.tables = {"scores": scores.to_parquet(index=False), "predictions": content}
            self.writer.write_exposure(exposure)
            if not self.not_replayed:
                self.writer.write_optimizer_log(log)

        self.writer.background.start(write)

    def _score(self, moment: Moment, split: str, outputs: NDArray[np.float32]) -> dict[str, Any]:
        encoded = self.data.splits[split]
        scores = score_split(self.data, split, outputs)
        head = {"epoch": moment.epoch, "step": moment.step, "split": split, "num_examples": len(encoded)}
        return head | scores | {"train_loss": moment.train_loss}

    def _predict(self, moment: Moment, split: str, outputs: NDArray[np.float32]) -> pd.DataFrame:
        """The lines of predictions.parquet of one split at an epoch end."""
        encoded, kind = self.data.splits[split], self.data.task.kind
        dtype = "Float64" if kind == "regression" else "Int64"
        labels: Any = [None] * encoded.num_rows if encoded.labels is None else encoded.labels
        all_examples, clusters = np.arange(len(encoded)), self.data.task.splits[split].clusters
        return pd.DataFrame(
            {
                "epoch": moment.epoch,
                "split": split,
                "id": np.repeat(encoded.ids, encoded.sizes_of(all_examples)),
                **({} if encoded.words is None else {"word": encoded.words.numbers}),
                **({} if clusters is None else {"cluster": np.repeat(clusters, encoded.sizes_of(all_examples))}),
                "label": pd.array(labels, dtype=dtype),
                "prediction": pd.array(predict(kind, outputs), dtype=dtype),
                "scores": list(outputs),
            }
        )

    def _optimizer_log(self) -> OptimizerLog:
        """The log of the steps so far."""
        is_sgd = self.config.optimizer == "sgd"
        return OptimizerLog(
            algorithm=SGD if is_sgd else ADAMW,
            is_fused=is_fused(self.device) and not is_sgd,
            betas=(np.nan, np.nan) if is_sgd else BETAS,
            eps=np.nan if is_sgd else EPS,
            weight_decay=decay_by_name(self.groups, self.loaded.family),
            learning_rates=np.array(self.recorder.learning_rates, dtype=np.float64),
            head_learning_rates=np.array(self.recorder.head_learning_rates, dtype=np.float64),
            clipping_factors=np.array(self.recorder.clipping_factors, dtype=np.float64),
            precision=self.config.precision,
        )

    def finish(
        self,
        accelerator: Any,
        regime: Regime,
        before: Mapping[str, str],
        probe: LinearProbe | None,
        floors: Floors | None,
        seconds: Mapping[str, float],
        facts: Mapping[str, Any],
        other_seconds: Mapping[str, float],
        epoch_seconds: Sequence[float],
    ) -> None:
        """Prove that what was frozen did not move, save the model if asked, and write the manifest, with ``facts``.

        RuntimeError when a frozen parameter has changed: then the run proves nothing, and no manifest is written.
        """
        if self._written_steps != self.recorder.num_steps:  # taken up behind the last epoch
            self._write_outputs()
        self.writer.background.wait()
        self._warn_of_stillness()
        after = fingerprint(self.loaded.model, before)
        moved = [name for name in before if before[name] != after[name]]
        if moved:
            raise RuntimeError(f"frozen parameters have changed: {', '.join(moved)}")
        if self.config.save_model:
            self._save_model()
        self.writer.finish(
            {
                "regime": {"label": regime.label, "frozen_components": sorted(regime.frozen)},
                "frozen": {
                    "is_bit_identical": True,
                    "parameters": {name: {"before": before[name], "after": after[name]} for name in before},
                },
                "model": self._describe_model(),
                "task": self._describe_task(),
                "linear_probe": None
                if probe is None
                else {split: score_split(self.data, split, values) for split, values in probe.outputs.items()},
                "linear_probe_choice": None if probe is None else dict(probe.choice),
                "floors": None if floors is None else floors.scores,
                "floors_choice": None if floors is None else floors.choice,
                **facts,
                "optimizer": self.config.optimizer,
                "problems": self._problems(),
                "step_sizes": as_columns(self.recorder.step_sizes),
                "added_tokens": None if self.loaded.added is None else dict(self.loaded.added),
                "positions": None if self.loaded.positions is None else dict(self.loaded.positions),
                "cost": {
                    **{f"seconds_{name}": round(value, 3) for name, value in seconds.items()},
                    # No stage of training: a condition's cost does not count it.
                    **({} if floors is None else {"floors_seconds": round(floors.seconds, 3)}),
                    **{name: round(value, 3) for name, value in other_seconds.items()},
                    "epoch_seconds": list(epoch_seconds),
                    "examples_per_second": self.recorder.num_examples / max(sum(seconds.values()), 1e-9),
                    "peak_memory_bytes": peak_memory_bytes(accelerator),
                },
                **describe_devices(accelerator),
                "position_offset": self.data.position_offset,
                "layer_norm_eps": layer_norm_eps(self.loaded.model.backbone, self.loaded.family),
                "versions": read_versions(),
                "git_commit": read_git_commit(),
            }
        )

    def _problems(self) -> list[str]:
        tied = [f"{name} {IS_OUTPUT_TOO}" for name in tied_tables(self.loaded)]
        return tied + ([self.not_replayed] if self.not_replayed else [])

    def _describe_model(self) -> dict[str, Any]:
        """What the manifest says of the model."""
        parameters = list(self.loaded.model.parameters())
        source = self.loaded.source
        return {
            "name": source.name,
            "revision": source.revision,
            "weights_sha256": source.sha256,
            "config_sha256": source.config_sha256,
            "tokenizer_sha256": source.tokenizer_sha256,
            "family": self.loaded.family.name,
            "init": self.config.init,
            # A masked-LM head reads every token's state: there is nothing to pool.
            "pooling": None if self.data.masking is not None else self.config.pooling,
            "features": self.config.features,
            "pair_encoding": self.config.pair_encoding,
            "head": self._describe_head(),
            "tied": list(tied_tables(self.loaded)),
            "adapted": list(self.embeddings.adapted),
            "num_parameters": sum(p.numel() for p in parameters),
            "num_trainable": sum(p.numel() for p in parameters if p.requires_grad),
        }

    def _describe_head(self) -> str:
        if not isinstance(self.loaded.model.head, MaskedHead):
            return HEAD_DESCRIPTIONS[self.config.head]
        tied = "".join(f", its decoder tied to {name}" for name in tied_tables(self.loaded))
        return f"masked LM ({'random' if self.config.init == 'random' else 'of the checkpoint'}{tied})"

    def _describe_task(self) -> dict[str, Any]:
        """What the manifest says of the task and its splits."""
        task = self.data.task
        return {
            "name": task.name,
            "kind": task.kind,
            "label_names": list(task.label_names),
            "carrier": task.carrier,
            "commonest_label": commonest_label(self.data),
            "reported_split": task.reported_split,
            "score": task.score,
            "data_sha256": dict(task.data_hashes),
            "out_of_distribution": list(task.out_of_distribution),
            "num_near_duplicates": None if task.num_near_duplicates is None else dict(task.num_near_duplicates),
            "splits": {
                name: {
                    "num_examples": len(split),
                    "num_truncated": split.num_truncated,
                    "num_empty_texts": split.num_empty_texts,
                    **_word_facts(split.words, task.splits[name]),
                    **({} if name == "train" else _repetition_facts(task.splits[name], task.splits["train"])),
                }
                for name, split in self.data.splits.items()
            },
        }

    def _save_model(self) -> None:
        """``model/`` for ``AutoModel.from_pretrained``, with the head beside it in head.safetensors.

        Adapters are merged into it, and lie in ``model/adapter/`` as peft writes them, where the checkpoint is their
        base.
        """
        backbone: Any = self.loaded.model.backbone
        model = self.loaded.model
        head = {name.removeprefix(HEAD): to_array(p) for name, p in model.named_parameters() if name.startswith(HEAD)}
        labels = "\n".join(self.data.task.label_names)

        def write(folder: Path) -> None:
            with disk_errors(folder):
                if isinstance(model.head, MaskedHead):
                    with model.head.whole(backbone) as masked_lm:  # AutoModel finds the backbone in it
                        masked_lm.save_pretrained(folder)
                else:
                    backbone.save_pretrained(folder, state_dict=whole_state(backbone, merged_state(backbone)))
                save_adapter(self.loaded, self.config, folder / "adapter")
            self.loaded.tokenizer.save_pretrained(folder)
            write_tensors(folder / "head.safetensors", head, {**recipe_of(self.config), "labels": labels})

        self.writer.write_folder("model", write)


def _repetition_facts(split: Split, train: Split) -> dict[str, int]:
    """What speaks against its examples as so many new ones: clusters that they come in or, where none are known, texts
    that repeat, and those that stand in ``train`` word for word."""
    trained_on = set(train.texts)
    counts = {
        "num_clusters": split.num_units if split.num_units < len(split) else 0,
        "num_repeated_texts": split.num_repeated_texts if split.num_units == len(split) else 0,
        "num_in_train": sum(texts in trained_on for texts in split.texts),
    }
    return {name: count for name, count in counts.items() if count}


def _word_facts(words: WordTokens | None, split: Split) -> dict[str, int]:
    """Words that are answered for, and those that were truncated or of which the tokenizer keeps nothing.

    Of a split that is masked, its masked tokens.
    """
    if words is None:
        return {}
    num_words = len(words.places)
    if split.words is None:
        return {"num_masked_tokens": num_words}
    return {"num_words": num_words, "num_words_lost": sum(map(len, split.words)) - num_words}
