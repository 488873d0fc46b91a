"""The training half on one screen: from a config to a finished run directory."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from tqdm import tqdm

from toolkit.config import RunConfig, check_regime, recipe_of, resolve_head_training, run_name
from toolkit.data.batches import EncodedTask
from toolkit.data.splits import Task
from toolkit.data.tasks import check_sources, load_task, task_name
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.memory import collecting_nothing
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.classifier import Loaded, load_classifier, tied_tables
from toolkit.models.lora import put_adapters, with_own_names
from toolkit.models.new_tokens import with_new_tokens
from toolkit.models.positions import prepare_positions
from toolkit.models.regimes import (
    BACKBONE,
    Regime,
    adapter_regime,
    apply_regime,
    list_components,
    locate_embeddings,
    parse_regime,
)
from toolkit.progress import say, shows_progress
from toolkit.snapshots.run_writer import RunWriter, check_startable
from toolkit.snapshots.store import MANIFEST, Run, open_run
from toolkit.snapshots.unfinished import State
from toolkit.training.accelerators import as_configured, build_accelerator, start_together
from toolkit.training.encoding import encode_task, mask_task, unknown_share
from toolkit.training.evaluation import extract_features
from toolkit.training.features import (
    Features,
    linear_probe,
    train_head,
    train_head_first,
    train_head_until_it_stops,
)
from toolkit.training.floors import measure_floors
from toolkit.training.live_drift import StepSize, drift_and_norms
from toolkit.training.loop import Moment, Plan, train
from toolkit.training.optimizer import NonFiniteLossError, StepLog, build_optimizer, group_parameters
from toolkit.training.resume import Resumer, identity_of
from toolkit.training.saver import Saver, fingerprint
from toolkit.training.step_recorder import Recorder
from toolkit.training.trains import in_one_line, what_trains


class Screen(Protocol):
    """Reports the progress of a run, as `toolkit.reporting.run_screen` does on a terminal."""

    def print_task(self, task: Task, rows: Iterable[tuple[str, int, int, int, float]], max_length: int) -> None: ...

    def print_components(self, title: str, answer: str, components: Any) -> None: ...

    def epoch_line(self, score: str, rows: Sequence[Mapping[str, Any]]) -> str: ...

    def print_result(self, run: Run, seconds: float) -> None: ...


def finetune(
    config: RunConfig | Mapping[str, Any], *, reuse_finished: bool = False, screen: Screen | None = None
) -> Run:
    """Train one config and write its run directory; every process of a launch calls this.

    Parameters
    ----------
    config
        Everything that the run depends on: a RunConfig, or a dict of its fields.
    reuse_finished
        Return a finished run of the same config, so that a script can be repeated after an interruption, if data,
        config.json and tokenizer of the checkpoint are still its own. Otherwise such a run is refused, unless
        ``config.overwrite`` is set.
    screen
        Reports progress, as toolkit.reporting.run_screen does on a terminal; None leaves one progress bar.

    Returns
    -------
    Run
        The finished run.

    Raises
    ------
    ValueError
        The config, the checkpoint or the data cannot work; no file has been written then.
    ConnectionError
        Another process of the launch has ended or has not answered for ``config.ddp_timeout`` seconds.
    """
    started = time.perf_counter()
    if not isinstance(config, RunConfig | Mapping):
        raise ValueError(f"finetune takes a RunConfig or a dict of its fields; got {config!r}")
    if isinstance(config, Mapping):
        config = RunConfig.from_json(json.dumps(dict(config), default=str), "finetune")
    check_regime(config)
    accelerator = build_accelerator(config)
    with collecting_nothing():  # most of transformers is imported here, and each text is an object for a while
        config, task, loaded, regime = build_model(config)
        config = replace(
            config,
            freeze=config.freeze if config.lora else regime.label,
            task=task_name(config),
            precision=accelerator.mixed_precision,
        )
        data = mask_task(encode_task(task, loaded, config.max_length), loaded, config)
    loaded = prepare_positions(loaded, config)
    hash_of_added_tokens = {} if loaded.added is None else {"add_tokens": loaded.added["sha256"]}
    path = Path(config.output_dir) / run_name(
        config, {**task.file_hashes, **loaded.source.digest_entry(), **hash_of_added_tokens}
    )
    if reuse_finished and (path / MANIFEST).exists():
        finished_run = open_run(path)
        task.check_data(finished_run.manifest["task"].get("data_sha256") or {}, path.name)
        loaded.source.check_settings(finished_run.manifest["model"], path.name)
        return finished_run
    check_startable(path, overwrite=config.overwrite)
    accelerator.wait_for_everyone()  # nobody writes before everybody has looked
    identity = identity_of(accelerator, path.name, loaded.source.sha256 or loaded.source.revision, task.data_hashes)
    writer, state = start_together(
        path,
        is_main=accelerator.is_main_process,
        overwrite=config.overwrite,
        identity=identity if config.resume else None,
    )
    try:
        frozen = apply_regime(loaded.model, regime, loaded.family)
        if writer is not None:
            _print_plan(screen, loaded, data, config, regime)
        with as_configured(accelerator, config):
            training = _Training(
                accelerator, loaded, data, config, regime, frozen, path.name, writer, screen, state, identity
            )
            training.run()
            accelerator.wait_for_everyone()
    except NonFiniteLossError as error:
        if writer is not None:
            writer.write_divergence(str(error))
        raise
    finally:
        if writer is not None:
            writer.release()
    run = open_run(path)
    if screen is not None and accelerator.is_main_process:
        screen.print_result(run, time.perf_counter() - started)
    return run


def build_model(config: RunConfig) -> tuple[RunConfig, Task, Loaded, Regime]:
    """The completed config, its task, the model with adapters and added rows, and its regime.

    ValueError for what the model cannot do.
    """
    task = load_task(config)
    loaded = load_classifier(
        config.model,
        **recipe_of(config),
        num_outputs=task.num_outputs,
        is_token_task=task.kind == "tokens",
        is_masked_lm=task.kind == "masked",
        init=config.init,
        seed=config.seed,
        dropout=config.dropout,
    )
    config = with_own_names(config, loaded.family)
    loaded = with_new_tokens(loaded, config)
    put_adapters(loaded, config)
    components = list_components(loaded.model, loaded.family)
    regime = adapter_regime(components) if config.lora else parse_regime(config.freeze, tuple(components))
    _check_head_stage(config, regime)
    if config.train_rows == "new" and "word_embeddings" in regime.frozen:
        raise ValueError(f"--train-rows new trains rows of the word table, which --freeze {config.freeze} freezes")
    _check_rates(config, [leaf for leaf in components if leaf not in regime.frozen])
    return resolve_head_training(config, is_frozen=regime.label == "backbone"), task, loaded, regime


def _check_rates(config: RunConfig, trained: list[str]) -> None:
    """ValueError for a learning rate of components of which none is trained."""
    if config.layer_decay != 1 and not any(leaf.startswith("layers.") for leaf in trained):
        raise ValueError(f"--layer-decay {config.layer_decay:g}: all layers are frozen")
    if config.embedding_learning_rate is not None and not set(EMBEDDING_PARAMETERS) & {*trained}:
        raise ValueError(f"--embedding-learning-rate {config.embedding_learning_rate:g}: all embeddings are frozen")


def _check_head_stage(config: RunConfig, regime: Regime) -> None:
    """ValueError when there is no head for --head-epochs to train."""
    if config.head_epochs and "head" in regime.frozen:
        raise ValueError("--head-epochs trains the head, and --freeze freezes it: leave one of them out")


def _print_plan(
    screen: Screen | None,
    loaded: Loaded,
    data: EncodedTask,
    config: RunConfig,
    regime: Regime,
) -> None:
    """Show data, components and regime of a run before it starts; nothing without a screen."""
    if screen is None:
        return
    rows = [
        (name, len(split), split.num_truncated, split.num_empty_texts, unknown_share(split, loaded.tokenizer))
        for name, split in data.splits.items()
    ]
    screen.print_task(data.task, rows, config.max_length)
    screen.print_components(*describe_plan(loaded, config, regime))


def describe_plan(loaded: Loaded, config: RunConfig, regime: Regime) -> tuple[str, str, Any]:
    """Title, answer and table of what will train in a model whose regime is applied, at the config's peak rates."""
    notes = f", positions {config.positions}" if config.positions != "checkpoint" else ""
    notes += ", added again before each layer" if config.reinject_positions else ""
    notes += "".join(f", {name} tied to the output layer" for name in tied_tables(loaded))
    if loaded.added is not None:
        only_added = ", of whose table only these rows are trained" if config.train_rows == "new" else ""
        notes += f", {len(loaded.added['tokens']):,} added tokens{only_added}"
    model = loaded.model
    optimizer = build_optimizer(model, group_parameters(model, config), config, torch.device("cpu"))
    table = what_trains(model, optimizer)
    title = f"{config.model} ({loaded.family.name}), {config.adapters or f'regime {regime.label}'}"
    return f"{title}, precision {config.precision}{notes}", in_one_line(table), table


@shows_progress("what will train")
def plan(config: RunConfig) -> tuple[str, str, Any]:
    """What :func:`finetune` would train, as :func:`describe_plan` gives it; nothing is trained or written."""
    check_regime(config)
    check_sources(config)
    say("opening the model", 0, 2)
    config, _, loaded, regime = build_model(config)
    say("opening the model", 1, 2)
    apply_regime(loaded.model, regime, loaded.family)
    return describe_plan(loaded, config, regime)


@shows_progress("what will train")
def plan_of_trainer(name: str) -> tuple[str, str, Any]:
    """The same of a classifier that transformers.Trainer would train at its defaults; the weights are not read.

    ValueError for a checkpoint of an architecture that transformers has no classifier of.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as KNOWN
    from transformers import AutoModelForSequenceClassification, TrainingArguments

    config = find_checkpoint(name).pinned().read_config()
    if type(config) not in KNOWN:
        raise ValueError(f"{name}: transformers has no classifier of {config.model_type}: pass finetune.py's flags")
    say("opening the model", 0, 2)
    with torch.device("meta"):
        dtype = config.dtype or torch.float32
        model = AutoModelForSequenceClassification.from_config(config, dtype=dtype, trust_remote_code=False)
    say("opening the model", 1, 2)
    rate, decay = TrainingArguments.learning_rate, TrainingArguments.weight_decay
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    table = what_trains(model, optimizer)
    return f"{name} in transformers.Trainer at its defaults", in_one_line(table), table


class _Training:
    """One run as it is trained; each process of a launch has one, and the main one writes and shows it."""

    def __init__(
        self,
        accelerator: Any,
        loaded: Loaded,
        data: EncodedTask,
        config: RunConfig,
        regime: Regime,
        frozen: tuple[str, ...],
        name: str,
        writer: RunWriter | None,
        screen: Screen | None,
        state: State | None,
        identity: Mapping[str, Any],
    ) -> None:
        """``frozen``: names of parameters; ``state``: where the run is taken up."""
        from accelerate.utils import set_seed

        self.accelerator, self.loaded, self.data = accelerator, loaded, data
        self.config, self.regime = config, regime
        self.model, self.writer, self.screen, self.state = loaded.model, writer, screen, state
        self.embeddings = locate_embeddings(self.model.backbone)
        is_held = config.train_rows == "new"  # all but the added rows of the word table
        first_rows = {"word_embeddings": loaded.added["first_row"]} if loaded.added and is_held else None
        self.recorder = Recorder(dict(self.embeddings.parameters), first_rows, tied_tables(loaded))
        self.before = fingerprint(self.model, frozen)
        self.saver = None
        if writer is not None:
            self.saver = Saver(writer, config, data, loaded, self.recorder, accelerator.device)
        set_seed(config.seed, device_specific=True)
        self.is_stopped = config.head_training == "early-stopping"
        num_steps = None if self.is_stopped else Plan.of(config, data.splits["train"].lengths).num_steps
        self.facts: dict[str, Any] = {**identity, "head_stage": state.facts["head_stage"] if state else None}
        self.head_training: dict[str, Any] = {"mode": config.head_training}
        self.how_steps_ran: dict[str, Any] = {}
        is_frozen = all(name in frozen for name, _ in self.model.named_parameters() if name.startswith(BACKBONE))
        self.has_features = is_frozen and data.masking is None  # of texts masked anew in each epoch none can be kept
        self.features: Features | None = None
        self.progress = _Progress(accelerator, config, name, num_steps, screen)
        self.resumer = Resumer(
            accelerator,
            self.recorder,
            writer,
            state,
            self.facts,
            every_steps=config.resume_steps,
            seconds=lambda: self.progress.seconds,
        )

    def run(self) -> None:
        """Train, save each moment as it comes, and end with the manifest."""
        with self.progress:
            if self.state is not None:
                self.progress.go_on(self.state)
                if self.saver is not None:
                    self.saver.restore(self.state)
            moments = self._moments()
            with self.resumer.listening():
                for moment in moments:
                    self._save(moment)
        if self.saver is not None:
            self._finish(self.saver)
        for tracker in self.accelerator.trackers:  # not end_training: that would also end later runs' process group
            tracker.finish()

    def _moments(self) -> Iterator[Moment]:
        """The training that the regime asks for: of the head alone, on features, where the backbone is frozen."""
        accelerator, model, data, config, recorder = self.accelerator, self.model, self.data, self.config, self.recorder
        # A backbone that never changes is run once, not in every step.
        if self.has_features:
            with self._timed("features"):
                self.features = extract_features(accelerator, model, data)
            arguments = accelerator, model, self.features, data, config, recorder, self._on_step
            if self.is_stopped:
                return train_head_until_it_stops(*arguments, self.head_training, self.resumer)
            return train_head(*arguments, self.resumer)
        if config.head_epochs and self.state is None:
            with self._timed("head_stage"):
                losses = train_head_first(accelerator, model, data, config)
            self.facts["head_stage"] = {"epochs": config.head_epochs, "train_loss": losses}
        return train(accelerator, model, data, config, recorder, self._on_step, self.resumer, self.how_steps_ran)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Time what runs within, as one stage of the run's cost."""
        started = time.perf_counter()
        yield
        self.progress.seconds[stage] = time.perf_counter() - started

    def _on_step(self, log: StepLog, seconds: float) -> None:
        """Called by the loop after each optimizer step."""
        self.progress.on_step(log, seconds)
        self.progress.on_sizes(log.step, self.recorder.step_sizes)
        if self.writer is not None:
            self.writer.background.check()  # a full disk ends the run now, and not an epoch later

    def _save(self, moment: Moment) -> None:
        """Save the snapshot, the outputs and the scores of one moment."""
        tensors = self.embeddings.values()  # on every process: shards may have to be gathered
        self.progress.on_moment(moment)
        if self.saver is not None:
            self.saver.save_snapshot(moment, tensors)
            self.progress.on_snapshot(moment, tensors, self.writer)
        started = time.perf_counter()
        outputs = self._outputs_of(moment)
        self.progress.evaluation_seconds += time.perf_counter() - started
        if self.saver is not None and outputs is not None:
            scores = self.saver.save_outputs(moment, outputs)
            self.progress.on_scores(moment.step, self.data.task.score, scores)

    def _outputs_of(self, moment: Moment) -> Mapping[str, Any] | None:
        """The outputs of a moment, on every process; of a run that has diverged the snapshot is discarded."""
        try:
            return moment.compute_outputs() if moment.compute_outputs else None
        except NonFiniteLossError:
            if self.saver is not None:
                self.saver.discard_snapshot(moment)
            raise

    def _finish(self, saver: Saver) -> None:
        """Measure what is measured after training, and write the manifest."""
        progress = self.progress
        probe = self.head_training.pop("probe", None)
        progress.seconds["training"] += probe.seconds if probe else 0.0  # unlike a yardstick, it may be the head
        if probe is None and self.features is not None:
            # After training: of mixed layers the probe reads what the head has learned to mix.
            probe = linear_probe(self.model.head, self.features, self.data, self.config.seed)
        floors = measure_floors(self.data, self.config)
        other_costs = {"evaluation_seconds": progress.evaluation_seconds}
        kept_facts = {**self.how_steps_ran, "head_training": self.head_training, "head_stage": self.facts["head_stage"]}
        saver.finish(
            self.accelerator,
            self.regime,
            self.before,
            probe,
            floors,
            progress.seconds,
            kept_facts,
            other_costs,
            progress.epoch_seconds,
        )


class _Progress:
    """The bar and the trackers of one run; silent on every process but the main one."""

    def __init__(
        self, accelerator: Any, config: RunConfig, name: str, num_steps: int | None, screen: Screen | None
    ) -> None:
        """Start the bar of the main process, and the trackers that the config names."""
        self.accelerator, self.seconds, self.screen = accelerator, {"training": 0.0}, screen
        self.evaluation_seconds = 0.0
        self.epoch_seconds: list[float] = []
        """Of the training of each epoch, from where the run began or was taken up."""
        self.seconds_before = 0.0
        self.first: Mapping[str, Any] = {}
        self.bar = tqdm(total=num_steps, unit="step", disable=not accelerator.is_main_process, mininterval=0.5)
        if config.log_with:
            logged = {
                field_name: value
                for field_name, value in asdict(config).items()
                if isinstance(value, int | float | str | bool)
            }
            names = {"wandb": {"name": name}, "trackio": {"name": name}, "mlflow": {"run_name": name}}
            project = name if config.log_with == "tensorboard" else "embedding-drift"  # there it is the run's folder
            accelerator.init_trackers(project, config=logged, init_kwargs=names)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def go_on(self, state: State) -> None:
        """Show where the run is taken up."""
        self.seconds |= state.facts["seconds"]
        self.seconds_before = self.seconds["training"]
        self.bar.update(state.step)
        if self.screen is not None:
            where = f"step {state.step:,}, where an earlier run of this command was cut short"
            self.bar.write(f"Going on from {where} (--no-resume starts anew).")

    def on_step(self, log: StepLog, seconds: float) -> None:
        """Count a step, show its loss and send it to the trackers."""
        self.seconds["training"] += seconds
        self.bar.update()
        self.bar.set_postfix_str(f"loss={log.loss:.3f}", refresh=False)
        if self.accelerator.trackers:
            self.accelerator.log({"train/loss": log.loss, "train/learning_rate": log.learning_rate}, step=log.step)

    def on_moment(self, moment: Moment) -> None:
        """Note what the training of an epoch took, at its end."""
        if moment.is_epoch_end and moment.step:
            self.epoch_seconds.append(round(self.seconds["training"] - self.seconds_before, 3))
            self.seconds_before = self.seconds["training"]

    def on_sizes(self, step: int, sizes: Sequence[StepSize]) -> None:
        """Have trackers show how large this step was, if it was looked at; ``sizes``: of all steps so far."""
        sizes_of_step = [size for size in sizes[-len(EMBEDDING_PARAMETERS) :] if size.step == step]
        if self.accelerator.trackers and sizes_of_step:
            values = {name: value for size in sizes_of_step for name, value in size.series().items() if value == value}
            self.accelerator.log(values, step=step)

    def on_snapshot(self, moment: Moment, tensors: Mapping[str, Any], writer: RunWriter | None) -> None:
        """Have trackers show how far each embedding parameter is from epoch 0."""
        if not self.accelerator.trackers or writer is None:
            return
        if not self.first:
            run = Run(writer.path)
            self.first = tensors if moment.step == 0 else run.open_snapshot(run.snapshot_names()[0]).tensors
        self.accelerator.log(drift_and_norms(self.first, tensors), step=moment.step)

    def on_scores(self, step: int, headline: str, scores: list[Mapping[str, Any]]) -> None:
        """Show the scores of a moment, and send them to the trackers."""
        if self.screen is not None:
            self.bar.write(self.screen.epoch_line(headline, scores))
        values = {
            f"{row['split']}/{column}": value
            for row in scores
            for column, value in row.items()
            if isinstance(value, float) and value == value
        }
        self.accelerator.log(values, step=step)
