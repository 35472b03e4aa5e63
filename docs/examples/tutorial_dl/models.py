"""Examples of tutorial_dl.models."""

# %% Models of numpy
# shows: NAMES, GANS, build, curve, dense, softmax, transformer, one_dimensional_gan
from tutorial_dl import data, models

print(models.NAMES, models.GANS[:1])
line, digits, text = data.curve(n=10), data.digits(), data.text(length=16, characters=5000)
for model in (
    models.curve(line), models.dense(digits), models.softmax(digits), models.transformer(text),
    models.build("dense", line),
):  # fmt: skip
    print(type(model).__name__, model.parameters.size)
print(type(models.one_dimensional_gan(line)).__name__)

# %% Models of Keras
# shows: mlp, cnn, lstm, gpt, digits_gan, digits_conv_gan, shower_gan
import keras  # noqa: F401

from tutorial_dl import data, models

digits, text = data.digits(), data.text(length=16, characters=5000)
events, showers = data.events(n=20), data.load("small-showers")
for name, dataset in (("mlp", digits), ("cnn", digits), ("lstm", events), ("gpt", text)):
    print(f"{name:5}", getattr(models, name)(dataset).count_params())
for make, dataset in (
    (models.digits_gan, digits), (models.digits_conv_gan, digits), (models.shower_gan, showers),
):  # fmt: skip
    print(make.__name__, type(make(dataset)).__name__)
# models.mlp, models.cnn, models.lstm, models.gpt
