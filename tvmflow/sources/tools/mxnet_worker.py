"""Runs inside MXNet's tool environment: nothing of tvmflow can be imported here.

mxnet_worker.py export NETWORK SEED|pretrained HEIGHT FOLDER    write FOLDER/model-symbol.json, model-0000.params
mxnet_worker.py SYMBOL PARAMS DATA_NAME                         answer requests on standard input
"""

import io
import json
import os
import sys

answers = os.dup(1)
os.dup2(2, 1)  # MXNet prints where it likes

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402


def export(network, source, size, folder):
    from mxnet.gluon.model_zoo import vision

    pretrained = source == "pretrained"
    net = vision.get_model(network, pretrained=pretrained)
    if not pretrained:
        initialize(net, int(source))
    net.hybridize()
    net(mx.nd.zeros((1, 3, int(size), int(size))))
    if not pretrained:
        settle(net, int(source))
    net.export(os.path.join(folder, "model"), epoch=0)


def initialize(net, seed):
    mx.random.seed(seed)
    np.random.seed(seed)
    net.initialize(mx.init.MSRAPrelu(slope=0.0))


def settle(net, seed):
    """Give batch norms the statistics of something seen, so that deep networks keep their signal and tell inputs apart."""
    generator = np.random.RandomState(seed)
    for name, parameter in sorted(net.collect_params().items()):
        if name.endswith("running_mean"):
            parameter.set_data(mx.nd.array(generator.normal(0.0, 0.1, parameter.shape)))
        elif name.endswith("running_var"):
            parameter.set_data(mx.nd.array(generator.uniform(0.8, 1.2, parameter.shape)))
        elif name.endswith("gamma"):
            parameter.set_data(mx.nd.array(generator.uniform(0.8, 1.2, parameter.shape)))
        elif name.endswith("beta"):
            parameter.set_data(mx.nd.array(generator.normal(0.0, 0.1, parameter.shape)))


class Model:
    def __init__(self, symbol, params, data_name):
        self.symbol, self.data_name = mx.sym.load(symbol), data_name
        self.params = mx.nd.load(params)
        self.executors = {}

    def run(self, x, symbol):
        kept = {}
        for name, value in self.params.items():
            kept[name.split(":", 1)[-1]] = value
        arguments = {n: kept[n] for n in symbol.list_arguments() if n in kept}
        arguments[self.data_name] = mx.nd.array(x)
        for name in symbol.list_arguments():
            if name not in arguments:
                arguments[name] = mx.nd.zeros((x.shape[0],))  # the label of a softmax head
        states = {n: kept[n] for n in symbol.list_auxiliary_states()}
        executor = symbol.bind(mx.cpu(), arguments, aux_states=states, grad_req="null")
        return [output.asnumpy() for output in executor.forward(is_train=False)]

    def answer(self, request, x):
        if request == "run":
            return [("answer", self.run(x, self.symbol)[0])]
        internals = self.symbol.get_internals()
        names = [n for n in internals.list_outputs() if n.endswith("_output") or n.endswith("_output0")]
        group = mx.sym.Group([internals[n] for n in names])
        return list(zip(names, self.run(x, group)))


def send(head, bodies=()):
    os.write(answers, json.dumps(head).encode() + b"\n")
    for body in bodies:
        view = memoryview(body)
        while view:
            view = view[os.write(answers, view) :]


def serve(symbol, params, data_name):
    model = None
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        head = json.loads(line)
        body = sys.stdin.buffer.read(head["bytes"])
        try:
            model = model or Model(symbol, params, data_name)
            x = np.load(io.BytesIO(body), allow_pickle=False)
            found = model.answer(head["request"], x)
        except Exception as error:
            send({"error": (str(error).strip().splitlines() or [type(error).__name__])[-1][:400]})
            continue
        bodies = []
        for _, array in found:
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            bodies.append(buffer.getvalue())
        send({"arrays": [[name, len(body)] for (name, _), body in zip(found, bodies)]}, bodies)


if sys.argv[1] == "export":
    export(*sys.argv[2:6])
else:
    serve(*sys.argv[1:4])
