"""Make TensorFlow models in the forms that people have, in TensorFlow's tool environment, where this runs as a script.

tensorflow_forms.py FOLDER    write FOLDER/saved (signatures of several inputs and outputs), FOLDER/frozen.pb (of
                              TensorFlow 1), FOLDER/hub.tar.gz; and their inputs and outputs, FOLDER/*.npz
"""

# ruff: noqa: PTH123
import os
import sys
import tarfile
from typing import Any


def make_forms(folder: str) -> None:
    """Run this file in the tool environment of TensorFlow."""
    from tvmflow.toolchain.environments import run_tool

    run_tool("tensorflow", [folder], script=__file__)


def _module(tf: Any, np: Any) -> Any:
    random = np.random.default_rng(4)

    class Two(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(random.standard_normal((11, 6)).astype("f4"))
            self.kernel = tf.Variable(random.standard_normal((3, 3, 3, 6)).astype("f4"))

        def mix(self, image: Any, ids: Any) -> Any:
            found = tf.nn.relu(tf.nn.conv2d(image, self.kernel, 2, "SAME"))
            pooled = tf.reduce_mean(found, [1, 2]) + tf.reduce_mean(tf.gather(self.table, ids), 1)
            best = tf.argmax(pooled, 1, output_type=tf.int32)
            return {"scores": tf.nn.softmax(pooled), "best": best, "above": pooled > 0.1}

        def halve(self, x: Any) -> Any:
            return {"half": x * 0.5 + tf.reduce_sum(self.table)}

    return Two()


def _write_saved(tf: Any, np: Any, folder: str) -> None:
    module = _module(tf, np)
    image, ids = tf.TensorSpec((None, 8, 8, 3), tf.float32), tf.TensorSpec((None, 5), tf.int64)
    mix = tf.function(module.mix).get_concrete_function(image=image, ids=ids)
    halve = tf.function(module.halve).get_concrete_function(x=tf.TensorSpec((2, 4), tf.float32))
    tf.saved_model.save(module, f"{folder}/saved", signatures={"mix": mix, "halve": halve})
    random = np.random.default_rng(1)
    x, numbers = random.standard_normal((1, 8, 8, 3)).astype("f4"), random.integers(0, 11, (1, 5))
    found = mix(image=tf.constant(x), ids=tf.constant(numbers))
    np.savez(f"{folder}/mix.npz", image=x, ids=numbers, **{f"out_{name}": one.numpy() for name, one in found.items()})
    x = random.standard_normal((2, 4)).astype("f4")
    np.savez(f"{folder}/halve.npz", x=x, out_half=halve(x=tf.constant(x))["half"].numpy())


def _write_frozen(tf: Any, np: Any, folder: str) -> None:
    """Write a graph as TensorFlow 1 freezes it: names with slashes, an open batch, an end that nobody needs."""
    v1, random = tf.compat.v1, np.random.default_rng(2)
    x = random.standard_normal((1, 8, 8, 3)).astype("f4")
    with tf.Graph().as_default(), v1.Session() as session:
        image = v1.placeholder(tf.float32, (None, 8, 8, 3), name="net/input")
        kernel = v1.get_variable("net/kernel", initializer=random.standard_normal((3, 3, 3, 4)).astype("f4"))
        found = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"), name="net/relu")
        scores = tf.nn.softmax(tf.reduce_mean(found, [1, 2]), name="net/scores")
        tf.reduce_max(found, name="net/unused")
        session.run(v1.global_variables_initializer())
        names = ["net/scores", "net/unused"]
        frozen = v1.graph_util.convert_variables_to_constants(session, session.graph_def, names)
        with open(f"{folder}/frozen.pb", "wb") as file:
            file.write(frozen.SerializeToString())
        np.savez(f"{folder}/frozen.npz", x=x, out_scores=session.run(scores, {image: x}))


def main(folder: str) -> None:
    import numpy as np
    import tensorflow as tf  # type: ignore[import-untyped]

    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    _write_saved(tf, np, folder)
    _write_frozen(tf, np, folder)
    with tarfile.open(f"{folder}/hub.tar.gz", "w:gz") as archive:  # without a folder around it, as TF Hub's
        archive.add(f"{folder}/saved", arcname=".")


if __name__ == "__main__":
    main(sys.argv[1])
