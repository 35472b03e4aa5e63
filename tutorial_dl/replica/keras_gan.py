"""`KerasGan`: a game of two Keras models, computed by TensorFlow on our memory.

    generator       model([noise, y]) -> samples, or model(noise) if there are no conditions
    discriminator   model([x, y]) or model(x) -> scores (s, 1) that are real numbers, or a dict with
                    "score" and further outputs, each with an auxiliary loss

The weights of each lie in its own two flat vectors (keras/weights.py). A graph computes the loss
of one player and its gradient by that player's weights; gan.py has the losses. The discriminator
learns its auxiliary outputs from the data; the generator is to make samples for which they are
right (as the auxiliary classifier of Odena et al., arXiv 1610.09585).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.gan import Game, Round, Rules, Side
from tutorial_dl.replica.keras.graphs import Graphs, keras, tf
from tutorial_dl.replica.keras.weights import KerasWeights

ops = keras.ops


def of_class(output: Any, y: Any, x: Any) -> Any:
    """Cross-entropy of logits (s, classes) with the class asked for, (s,)."""
    return keras.losses.sparse_categorical_crossentropy(y, output, from_logits=True)


def of_energy(output: Any, y: Any, x: Any) -> Any:
    """Squared error of ln(energy), (s,): the output (s, 1) is ln(energy / 100 GeV)."""
    return ops.square(output[:, 0] - ops.log(y / 100))


def of_sum(output: Any, y: Any, x: Any) -> Any:
    """Relative error of the energy in all voxels, (s,): the output (s, 2) is it and its mean."""
    return ops.abs(output[:, 0] - output[:, 1]) / output[:, 1]


AUXILIARY: dict[str, Callable] = {"class": of_class, "energy": of_energy, "sum": of_sum}


def compile_unused(model: keras.Model) -> None:
    """Compile with a loss that is never used, in the model's precision; KerasWeights asks."""
    before = keras.config.floatx()
    keras.config.set_floatx(str(model.trainable_weights[0].dtype))
    try:
        model.compile(loss="mse")
    finally:
        keras.config.set_floatx(before)


class KerasSide(KerasWeights, Side):
    """One player: a Keras model."""

    def __init__(self, model: keras.Model, game: KerasGan, losses: Callable) -> None:
        if not model.compiled:
            compile_unused(model)
        super().__init__(model)
        self.game, self.last, self._losses = game, {}, losses
        if self.state_variables:
            raise ValueError(
                f"model '{model.name}': a GAN's models must not have moving statistics or other "
                "weights that are not trained, such as those of BatchNormalization; use "
                "LayerNormalization, or SpectralDense and SpectralConv2D of "
                "tutorial_dl.replica.keras_spectral"
            )
        self._graphs = Graphs(model, game.own_losses)

    def _gradients(self, *arrays: Any) -> list:
        with tf.GradientTape() as tape:
            loss = sum(self._losses(*arrays).values())
        # (Without a connection, there are zeros: a layer that only auxiliary outputs need.)
        zero = tf.UnconnectedGradients.ZERO
        sources = [v.value for v in self.variables]
        gradients = tape.gradient(loss, sources, unconnected_gradients=zero)
        return [loss, *map(tf.convert_to_tensor, gradients)]

    def _named(self, *arrays: Any) -> list:
        found = self._losses(*arrays)
        self._names = list(found)
        return list(found.values())

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        one = batch[0]
        if len(one) == 0:
            self.gradient[:], self.gradient_is_finite = 0, True
            return 0.0, 0
        loss, *gradients = self._graphs.run(self._gradients, self.game.arrays(one))
        self._join(gradients)
        return float(loss), len(one)

    def losses(self, one: Round) -> dict[str, float]:
        values = map(float, self._graphs.run(self._named, self.game.arrays(one)))
        found = dict(zip(self._names, values, strict=True))
        return {"loss": sum(found.values())} | {k: v for k, v in found.items() if k != "game"}


class KerasGan(Game):
    """The game of two Keras models.

    Args:
        generator, discriminator: The models, built; see the module's docstring.
        rules: How they play; its `auxiliary` must name outputs of the discriminator.
        losses: Auxiliary losses beside those in `AUXILIARY`, by the name of the output:
            f(output, y, x) -> (s,).

    Raises:
        ValueError: If the models' inputs and outputs do not fit.
    """

    name = "gan"

    def __init__(
        self,
        generator: keras.Model,
        discriminator: keras.Model,
        rules: Rules | None = None,
        losses: dict[str, Callable] | None = None,
    ) -> None:
        self.rules = Rules() if rules is None else rules
        self.models = generator, discriminator
        self._auxiliary, self.own_losses = AUXILIARY | (losses or {}), bool(losses)
        self._check()
        self._graphs = Graphs(generator)
        self.noise = int(generator.inputs[0].shape[-1])
        self.conditional = len(generator.inputs) == 2
        self._judge_conditional = len(discriminator.inputs) == 2
        self.generator = KerasSide(generator, self, self._of_generator)
        self.discriminator = KerasSide(discriminator, self, self._of_discriminator)
        if self.generator.dtype != self.discriminator.dtype:
            raise ValueError(
                f"generator of {self.generator.dtype} and discriminator of "
                f"{self.discriminator.dtype}: both must have one dtype"
            )

    def _check(self) -> None:
        for model, words in zip(self.models, ("generator", "discriminator"), strict=True):
            if not isinstance(model, keras.Model) or not model.built:
                raise ValueError(f"the {words} must be a keras.Model with its keras.Input")
            if len(model.inputs) not in (1, 2):
                first = "noise" if words == "generator" else "x"
                raise ValueError(
                    f"the {words} must have the inputs [{first}, y] or {first} alone, got "
                    f"{len(model.inputs)} inputs"
                )
        generator, discriminator = self.models
        made, takes = tuple(generator.output_shape), tuple(discriminator.inputs[0].shape)
        if made != takes:
            raise ValueError(
                f"the generator makes samples of shape {made[1:]}, the discriminator takes "
                f"{takes[1:]}"
            )
        outputs = discriminator.output if isinstance(discriminator.output, dict) else {}
        if isinstance(discriminator.output, dict) and "score" not in outputs:
            raise ValueError(f"the discriminator has outputs {sorted(outputs)}, but no 'score'")
        for name in self.rules.auxiliary:
            if name not in outputs or name not in self._auxiliary:
                raise ValueError(
                    f"auxiliary loss '{name}': the discriminator has outputs "
                    f"{sorted(outputs) or ['score']}, losses are known of {sorted(self._auxiliary)}"
                )

    # Samples

    def arrays(self, one: Round) -> list[np.ndarray]:
        """The arrays of a Round as the models take them: x, y, noise, uniforms."""
        dtype = self.generator.dtype
        x = np.asarray(one.x, dtype)
        y = np.asarray(one.y) if len(one.y) else np.zeros(len(one), np.int64)
        y = y.astype(dtype) if y.dtype.kind == "f" else y.astype(np.int64)
        return [x, y, one.noise, one.uniforms]

    def make(self, noise: Any, y: Any) -> Any:
        """Samples as tensors."""
        return self.models[0]([noise, y] if self.conditional else noise, training=True)

    def judge(self, x: Any, y: Any) -> dict[str, Any]:
        """The discriminator's outputs by name; "score" (s,)."""
        found = self.models[1]([x, y] if self._judge_conditional else x, training=True)
        found = found if isinstance(found, dict) else {"score": found}
        return {k: v[:, 0] if k == "score" else v for k, v in found.items()}

    def generate(self, noise: np.ndarray, y: Any = ()) -> np.ndarray:
        one = Round(np.zeros((len(noise), 1)), y, noise, np.zeros((len(noise), 1)))
        _, y, noise, _ = self.arrays(one)
        return np.asarray(self._graphs.run(self._made, [noise, y])[0])

    def _made(self, noise: Any, y: Any) -> list:
        return [self.make(noise, y)]

    # Losses, means over samples, by name

    def _of_generator(self, x: Any, y: Any, noise: Any, uniforms: Any) -> dict[str, Any]:
        made = self.make(noise, y)
        found = self.judge(made, y)
        score = found["score"]
        wasserstein = self.rules.loss == "wasserstein"
        game = -ops.mean(score) if wasserstein else ops.mean(ops.softplus(-score))
        return {"game": game} | self._others(found, y, made)

    def _of_discriminator(self, x: Any, y: Any, noise: Any, uniforms: Any) -> dict[str, Any]:
        rules, made = self.rules, self.make(noise, y)
        found, of_made = self.judge(x, y), self.judge(made, y)["score"]
        score = found["score"]
        losses = self._others(found, y, x)
        if rules.loss == "wasserstein":
            losses |= {"game": ops.mean(of_made) - ops.mean(score)}
            if rules.penalty:
                losses["penalty"] = rules.penalty * self._penalty(x, made, y, uniforms[:, 1])
            return losses
        label = ops.cast(uniforms[:, 0] >= rules.flips, score.dtype) * (1 - rules.smoothing)
        cost = label * ops.softplus(-score) + (1 - label) * ops.softplus(score)
        return losses | {"game": ops.mean(cost + ops.softplus(of_made))}

    def _others(self, found: dict[str, Any], y: Any, x: Any) -> dict[str, Any]:
        return {
            name: weight * ops.mean(self._auxiliary[name](found[name], y, x))
            for name, weight in self.rules.auxiliary.items()
        }

    def _penalty(self, x: Any, made: Any, y: Any, e: Any) -> Any:
        e = ops.reshape(e, (-1, *[1] * (len(x.shape) - 1)))
        between = e * x + (1 - e) * made
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.judge(between, y)["score"]
        slope = tape.gradient(score, between)
        length = ops.sqrt(ops.sum(ops.square(slope), axis=tuple(range(1, len(x.shape)))) + 1e-12)
        return ops.mean(ops.square(length - 1))
