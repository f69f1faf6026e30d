"""The training loop. All randomness of a step comes from (seed, step), so a run that was stopped anywhere and resumed
computes the same numbers as one that was not."""

from __future__ import annotations

import json
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from pydantic import TypeAdapter
from torch import Tensor, nn

from labelwise import losses
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import atomic_write
from labelwise.heads import GateMeter, Head
from labelwise.loading.augment import batch_mix, draw_partners, join_pairs
from labelwise.metrics import MultiLabelMetrics
from labelwise.model.model import LabelModel
from labelwise.runtime.run_files import CURVES, HISTORY, drop_replaced
from labelwise.training.averaging import AveragedWeights
from labelwise.training.batches import Batches, Share, Waiting
from labelwise.training.checkpoint import (
    damaged,
    last_checkpoint,
    module_tensors,
    named,
    optimizer_tensors,
    read_checkpoint,
    restore_module,
    restore_optimizer,
    write_checkpoint,
)
from labelwise.training.display import Display, write_curves
from labelwise.training.distributed import StopRequest, gathered
from labelwise.training.model_options import fixed_statistics
from labelwise.training.optimizer import create_optimizer, momentum_at, rate_at, set_rate
from labelwise.training.recipe import Recipe
from labelwise.training.run import write_gates


@dataclass
class Progress:
    """The state of a run beside its tensors; every checkpoint holds it."""

    data: str  # fingerprint of the images and their labels
    step: int = 0  # optimizer steps and accumulation steps alike
    loss_sum: float = 0.0  # of the epoch so far
    seconds: float = 0.0  # of training and validation, over all sessions
    best_score: float | None = None  # validation mAP; top-1 accuracy of a single-label model
    best_epoch: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per finished epoch


class Trainer:
    """Trains a module and keeps its best weights.

    Args:
        module: A whole model, or the head alone on cached features.
        batches: Training and validation batches of what the module takes.
        labels: How many labels there are.
        recipe: Loss, optimizer, schedule and the rest.
        folder: The run folder: checkpoints, history and gates go there.
        fabric: Devices, precision and processes.
        display: Where progress is shown.
        data: Fingerprint of the images and their labels; a run resumes only on the same data.
    """

    def __init__(
        self,
        module: nn.Module,
        batches: Batches,
        labels: int,
        recipe: Recipe,
        folder: Path,
        fabric: Fabric,
        display: Display,
        data: str,
    ) -> None:
        self.recipe, self.batches, self.labels, self.folder = recipe, batches, labels, folder
        self.fabric, self.display = fabric, display
        self.plain = module
        head = module.head if isinstance(module, LabelModel) else module
        assert isinstance(head, Head)
        self.head = head
        self.masks_labels = head.takes_known and recipe.model.task == "multi-label"
        # Copied before it is sharded: FSDP's modules cannot be.
        self.averaged = AveragedWeights(module, recipe.ema, warmup=recipe.ema_warmup) if recipe.ema else None
        self.module = fabric.setup_module(module)  # before the optimizer: FSDP replaces the parameters by sharded ones
        if self.averaged is not None:
            copied = self.averaged.module
            fabric.setup_module(copied) if recipe.strategy == "fsdp" else fabric.to_device(copied)
        # Fused steps support neither sharded tensors nor clipping of gradients that a loss scaler has enlarged.
        fused = recipe.strategy != "fsdp" and recipe.precision != "16-mixed"
        self.optimizer = create_optimizer(module, recipe.optimizer, fused)
        self.prepared: Any = fabric.setup_optimizers(self.optimizer)
        self.loss = losses.create(recipe.loss.name, **recipe.loss.options)
        self.loss.start(batches.train_images, labels, recipe.epochs)
        self.loss.to(fabric.device)
        self.mix = batch_mix(mixup=recipe.mixup, cutmix=recipe.cutmix, repeats=recipe.augmentation.repeats)
        self.progress = Progress(data)
        self.steps = len(batches) * recipe.epochs
        # Rates follow the optimizer's steps, so that accumulated batches are trained as one large batch would be.
        self.windows = math.ceil(len(batches) / recipe.accumulate)  # of an epoch

    def run(self, resume: bool) -> bool:
        """Train to the end, from the start or from the last checkpoint; False if that checkpoint is the end."""
        if resume and self._last.exists():
            self._restore()
            processes = counted(self.fabric.world_size, "process", "processes")
            self.display.say(f"continuing after step {self.progress.step:,} of {self.steps:,}, with {processes}")
        before = self.progress.step
        first_epoch, first_step = divmod(self.progress.step, len(self.batches))
        with StopRequest() as stop:
            for epoch in range(first_epoch, self.recipe.epochs):
                if self._stopped_early():
                    break
                self._train_epoch(epoch, first_step if epoch == first_epoch else 0, stop)
                if epoch + 1 < self.recipe.epochs and self._any_process(stop.requested):
                    raise KeyboardInterrupt  # the epoch has just been saved
        return self.progress.step > before

    def best_weights(self) -> dict[str, Tensor]:
        """The tensors of the best epoch; of the last one without validation."""
        tensors, _ = read_checkpoint(self.best)
        return named("kept", tensors)

    # One epoch: its steps, validation, checkpoint.

    def _train_epoch(self, epoch: int, first: int, stop: StopRequest) -> None:
        recipe, progress = self.recipe, self.progress
        self.module.train()
        self.loss.set_epoch(epoch)
        if first == 0:
            progress.loss_sum = 0.0
        started = saved = time.monotonic()
        images = 0
        self.display.start_epoch(epoch, recipe.epochs, len(self.batches), first)
        waiting = Waiting(self.batches.epoch(epoch, first))
        for number, (inputs, targets, rows) in enumerate(waiting, start=first):
            progress.loss_sum += self._step(inputs, targets, rows, number)
            progress.step += 1
            images += len(targets) * self.fabric.world_size
            now = time.monotonic()
            self.display.step(progress.loss_sum / (number + 1), images / (now - started))
            # A checkpoint holds no gradients, so it waits for an optimizer step; the epoch's end has one of its own.
            if not self._optimizes_after(number) or number + 1 == len(self.batches):
                continue
            stops = self._any_process(stop.requested)
            if stops or self._any_process(now - saved > recipe.checkpoint_minutes * 60):
                self._save(now - started if stops else 0.0)
                saved = now
            if stops:
                raise KeyboardInterrupt
        trained = time.monotonic() - started
        row = {
            "epoch": epoch + 1,
            "loss": self._mean_over_processes(progress.loss_sum) / len(self.batches),
            "lr": recipe.optimizer.lr * rate_at(*self._position(progress.step - 1), recipe.schedule),
            **self._validate(epoch + 1),
            "images_per_second": images / trained,
            "waiting": waiting.seconds / trained,  # share of the time that the model waited for data
        }
        progress.seconds += time.monotonic() - started
        progress.history.append({**row, "seconds": progress.seconds})
        self._save_if_best(epoch + 1, row.get("accuracy_top1", row.get("mAP")), row.get("weights"))
        self._save()
        self._write_history()
        self.display.end_epoch(progress.history[-1], progress.best_epoch)

    # One step: seed, learning rate, augmentation, forward, loss, backward and, when it is due, the optimizer.

    def _step(self, inputs: Tensor, targets: Tensor, rows: Tensor, number: int) -> float:
        recipe, step = self.recipe, self.progress.step
        torch.manual_seed((recipe.seed * 1_000_003 + step) * 1_009 + self.fabric.global_rank)
        position = self._position(step)
        set_rate(self.optimizer, rate_at(*position, recipe.schedule), momentum_at(*position, recipe.schedule))
        inputs, targets, options = self._augment(inputs.to(self.fabric.device), targets.to(self.fabric.device))
        if self.masks_labels:
            options["known"], targets = self.head.draw_known(targets)
        optimizes = self._optimizes_after(number)
        with self.fabric.no_backward_sync(self.module, enabled=not optimizes):
            terms = self.head.loss_terms(self._forward(inputs, options), targets)
            remembered = rows.to(self.fabric.device) if self.loss.remembers else None
            loss = self.loss.weighted(terms.logits, terms.targets, terms.image_weights, remembered) + terms.penalty
            with fixed_statistics(self.plain) if recipe.grad_checkpointing else nullcontext():
                self.fabric.backward(loss * self._loss_scale(number))
        value = float(loss.detach())
        self._require_finite("loss", value)
        if optimizes:
            self._optimize()
        return value

    def _forward(self, inputs: Tensor, options: dict[str, Tensor]) -> Tensor:
        """Logits [B, N], or more columns if the head answers more in training (`Head.loss_terms`)."""
        try:
            logits: Tensor = self.module(inputs, **options)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise LabelwiseError(
                "a batch norm cannot learn from one image whose feature map is a single point; use more images per "
                "batch and process, larger ones, or a frozen backbone",
                options={"batch_size": 2 * self.fabric.world_size, "size": 224, "freeze": "backbone"},
                either=True,
            ) from None
        return logits

    def _augment(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """MixUp or CutMix, and `pair_mix`: of images inside the model, of cached feature maps here."""
        if self.mix is not None:
            inputs, targets = self.mix(inputs, targets)
        if not self.recipe.pair_mix or torch.rand(()) >= self.recipe.pair_mix:
            return inputs, targets, {}
        partners, targets = draw_partners(targets)
        if isinstance(self.plain, LabelModel):
            return inputs, targets, {"partners": partners}
        return join_pairs(inputs, partners), targets, {}

    def _position(self, step: int) -> tuple[int, int]:
        """The optimizer's step to which a step belongs, and how many it takes in all."""
        epoch, number = divmod(step, len(self.batches))
        return epoch * self.windows + number // self.recipe.accumulate, self.recipe.epochs * self.windows

    def _optimizes_after(self, number: int) -> bool:
        return (number + 1) % self.recipe.accumulate == 0 or number + 1 == len(self.batches)

    def _loss_scale(self, number: int) -> float:
        """Fabric averages gradients over processes, and accumulation adds them up. A mean over images needs the mean
        of both, a sum needs the sum of both."""
        scale = self.recipe.loss.scale
        if self.loss.options.get("reduction") == "sum":
            return scale * self.fabric.world_size
        window = number - number % self.recipe.accumulate
        return scale / (min(window + self.recipe.accumulate, len(self.batches)) - window)

    def _optimize(self) -> None:
        """Clip the gradients, update the weights and their average."""
        clip_norm = self.recipe.optimizer.clip_norm
        if clip_norm is not None:
            norm: Any = self.fabric.clip_gradients(
                self.module, self.prepared, max_norm=clip_norm, error_if_nonfinite=False
            )
            if self.recipe.precision != "16-mixed":  # there the loss scaler skips such a step and lowers its scale
                self._require_finite("gradient", float(norm))
        self.prepared.step()
        self.prepared.zero_grad(set_to_none=True)
        if self.averaged is not None:
            self.averaged.update(self.plain)

    def _require_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise LabelwiseError(
                f"the {what} became {value} at step {self.progress.step + 1}; the last good checkpoint is kept. Try a "
                "lower learning rate, gradient clipping or full precision",
                options={"lr": self.recipe.optimizer.lr / 10, "optimizer.clip_norm": 1, "precision": "32-true"},
                either=True,
            )

    # Validation.

    @property
    def candidates(self) -> dict[str, nn.Module]:
        """The weights that are validated: those in training, and their average if there is one."""
        if self.averaged is None:
            return {"raw": self.plain}
        return {"averaged": self.averaged.module, "raw": self.plain}

    @torch.no_grad()
    def _validate(self, epoch: int) -> dict[str, Any]:
        """The metrics of the better weights; with averaged ones, also which they were and the scores of both."""
        if self.recipe.data.validation is None:
            return {}
        self.display.note("validating")
        single = self.recipe.model.task == "single-label"
        names = ("accuracy_top1", "accuracy_top5", "mAP") if single else ("mAP", "CF1", "OF1")
        # Of logits: sigmoids of confident predictions round to ties.
        metrics = {
            name: MultiLabelMetrics(self.labels, thresholds=0.0, top_k=(1, 5) if single else 3)
            for name in self.candidates
        }
        for module in self.candidates.values():
            module.eval()
        done, inputs = 0, None
        with GateMeter(next(iter(self.candidates.values()))) as meter:
            for inputs, targets in self.batches.validation(Share(self.fabric.global_rank, self.fabric.world_size)):
                inputs = inputs.to(self.fabric.device)
                for name, module in self.candidates.items():
                    metrics[name].update(self._logits(module, inputs), targets)
                done += 1
        self._write_gates(epoch, meter)
        most: Any = self.fabric.all_reduce(torch.tensor(done), reduce_op="max")
        # All processes gather sharded weights together: one with a batch less runs its last batch once more.
        for _ in range(int(most) - done):
            if inputs is None:  # all its validation images are broken: one of training does as well
                inputs = next(self.batches.epoch(0))[0].to(self.fabric.device)
            for module in self.candidates.values():
                self._logits(module, inputs)
        found = {name: metric.compute().to_dict() for name, metric in metrics.items()}
        best = max(found, key=lambda name: found[name][names[0]] or 0.0)
        row = {key: found[best][key] for key in names}
        if self.averaged is not None:
            row |= {"weights": best, **{f"{names[0]}_{name}": values[names[0]] for name, values in found.items()}}
        return row

    def _logits(self, module: nn.Module, inputs: Tensor) -> Tensor:
        with self.fabric.autocast():
            logits: Tensor = module(inputs)
        return logits.float().cpu()

    def _write_gates(self, epoch: int, meter: GateMeter) -> None:
        """Mean gate weights over the validation images of all processes."""
        seen = meter.total()  # None for a head without gates, and in a process without images
        parts = gathered(self.fabric, [] if seen is None else [(seen.cpu(), meter.images)])
        if parts:
            total = torch.stack([total for total, _ in parts]).sum(dim=0)
            write_gates(self.folder, epoch, (total / sum(images for _, images in parts)).numpy())

    def _stopped_early(self) -> bool:
        patience, progress = self.recipe.early_stop, self.progress
        if patience is None or progress.best_epoch is None or progress.best_score is None:
            return False
        return len(progress.history) - progress.best_epoch >= patience

    # Several processes.

    def _any_process(self, flag: bool) -> bool:
        """Processes save and stop together, or they would wait for each other in different places."""
        if self.fabric.world_size == 1:
            return flag
        return bool(self.fabric.all_reduce(torch.tensor(int(flag)), reduce_op="max"))

    def _mean_over_processes(self, value: float) -> float:
        mean: Any = self.fabric.all_reduce(torch.tensor(value, dtype=torch.float64), reduce_op="mean")
        return float(mean)

    # Checkpoints.

    @property
    def _last(self) -> Path:
        return last_checkpoint(self.folder)

    @property
    def best(self) -> Path:
        return self._last.with_name("best.safetensors")

    def _save_if_best(self, epoch: int, score: float | None, weights: str | None) -> None:
        """`weights` names the better candidate; without validation the average is saved, if there is one."""
        progress = self.progress
        if score is not None and progress.best_score is not None and score <= progress.best_score:
            return
        progress.best_score, progress.best_epoch = score, epoch
        module = self.candidates[weights] if weights else next(iter(self.candidates.values()))
        self._write(self.best, module_tensors("kept", module))

    def _save(self, extra_seconds: float = 0.0) -> None:
        tensors = {**module_tensors("module", self.plain), **optimizer_tensors(self.plain, self.optimizer)}
        if self.loss.remembers:
            tensors |= module_tensors("loss", self.loss)
        if self.averaged is not None:
            tensors |= module_tensors("averaged.module", self.averaged.module)
            tensors["averaged.n_averaged"] = torch.tensor(self.averaged.updates)
        self.progress.seconds += extra_seconds
        self.progress.loss_sum = self._mean_over_processes(self.progress.loss_sum)  # for any number of them to go on
        self._write(self._last, tensors)
        if self.fabric.is_global_zero:
            drop_replaced(self.folder)  # this run can be resumed now

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        if self.fabric.is_global_zero:
            write_checkpoint(path, tensors, {**asdict(self.progress), "steps": self.steps})
        self.fabric.barrier()

    def _restore(self) -> None:
        tensors, state = read_checkpoint(self._last)
        try:
            self._take(tensors, state)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # somebody edited it
            raise damaged(self._last, error) from error
        self._write_history()

    def _take(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if state.pop("steps") != self.steps or state["data"] != self.progress.data:
            raise LabelwiseError(
                "the data or the recipe has changed since this run was started: it cannot be resumed. Overwrite it, or "
                "start a new run in another folder",
                options={"overwrite": True},
            )
        progress = TypeAdapter(Progress).validate_python(state)
        finished = [row["epoch"] for row in progress.history]
        if not 0 <= progress.step <= self.steps or finished != list(range(1, progress.step // len(self.batches) + 1)):
            raise ValueError(f"step {progress.step} does not follow epochs {finished}")
        if progress.best_epoch not in (None, *finished):
            raise ValueError(f"no epoch {progress.best_epoch} in its history")
        restore_module("module", self.plain, tensors)
        restore_optimizer(self.plain, self.optimizer, tensors)
        if self.loss.remembers:
            restore_module("loss", self.loss, tensors)
        if self.averaged is not None:
            restore_module("averaged.module", self.averaged.module, tensors)
            self.averaged.updates = int(tensors["averaged.n_averaged"])
        self.progress = progress

    def _write_history(self) -> None:
        """Written anew from what the checkpoint holds: a line that a killed run wrote too early disappears."""
        if self.fabric.is_global_zero:
            atomic_write(self.folder / HISTORY, "".join(json.dumps(row) + "\n" for row in self.progress.history))
            write_curves(self.folder / CURVES, self.progress.history)
