"""Run MXNet in its tool environment; nothing of tvmflow can be imported here.

mxnet_worker.py export NETWORK SEED|pretrained FOLDER HEIGHT...    write FOLDER/model-symbol.json, model-0000.params
mxnet_worker.py SYMBOL PARAMS DATA_NAME                            serve requests on standard input
"""

import json
import os
import sys

import serving  # first: it redirects what MXNet prints

import mxnet as mx  # isort: skip
import numpy as np


def export(network, source, folder, *heights):
    """Write a network at the first height that it takes: pools of a fixed size refuse small images."""
    from mxnet.gluon.model_zoo import vision

    pretrained = source == "pretrained"
    for size in map(int, heights):
        net = vision.get_model(network, pretrained=pretrained)
        if not pretrained:
            initialize(net, int(source))
        net.hybridize()
        try:
            net(mx.nd.zeros((1, 3, size, size))).wait_to_read()
            break
        except (ValueError, mx.base.MXNetError):
            if size == int(heights[-1]):
                raise
    if not pretrained:
        settle(net, int(source), size)
    net.export(os.path.join(folder, "model"), epoch=0)


def initialize(net, seed):
    mx.random.seed(seed)
    np.random.seed(seed)
    net.initialize(mx.init.MSRAPrelu(slope=0.0))


def settle(net, seed, size):
    """Give batch norms the statistics of a seeded batch, and the head outputs of mean 0, and variance 1 over all of it.

    Without this deep networks give the same output for every input, and any comparison of their outputs passes. The
    variance is that of all classes together: of a thousand, some class hardly varies over four inputs, and divided by
    its own deviation it would drown the others in every input that comes later.
    """
    generator = np.random.RandomState(seed)
    for name, parameter in sorted(net.collect_params().items()):
        if name.endswith("gamma"):
            parameter.set_data(mx.nd.array(generator.uniform(0.8, 1.2, parameter.shape)))
        elif name.endswith("beta"):
            parameter.set_data(mx.nd.array(generator.normal(0.0, 0.1, parameter.shape)))
    weaken_branches(net)
    x = mx.nd.array(generator.standard_normal((4, 3, size, size)) * 0.3 + generator.standard_normal((4, 3, 1, 1)))
    for _ in range(25):  # a running mean keeps 7 % of its initial value; MXNet updates it in the backward pass
        with mx.autograd.record():
            y = net(x)
        y.backward()
    heads = [name for name in net.collect_params() if name.endswith("bias")]
    if not heads:  # MobileNetV2 ends in a convolution without one
        return
    bias = net.collect_params()[heads[-1]]
    weight = net.collect_params()[heads[-1][: -len("bias")] + "weight"]
    y = net(x).asnumpy()
    mean, deviation = y.mean(axis=0), max(float(np.sqrt(y.var(axis=0).mean())), 1e-6)
    if len(weight.shape) == 2 and bias.shape == mean.shape:  # a dense layer is the last
        weight.set_data(mx.nd.array(weight.data().asnumpy() / deviation))
        bias.set_data(mx.nd.array((bias.data().asnumpy() - mean) / deviation))


def weaken_branches(net):
    """Divide the last layer of each residual branch by the square root of the number of branches.

    Trained networks change their input little in each block. With branches as strong as their input, the outputs of a
    network of 34 layers or more hardly follow its input, and the smallest rounding in any layer drowns them.
    """
    nodes = json.loads(net(mx.sym.var("data")).tojson())["nodes"]
    ancestors = []  # of each node, itself included
    for at, node in enumerate(nodes):
        ancestors.append({at}.union(*(ancestors[one[0]] for one in node["inputs"])))
    sums = [node for node in nodes if node["op"] in ("elemwise_add", "_plus", "broadcast_add")]
    parameters = net.collect_params()
    for node in sums:
        last = nodes[max((one[0] for one in node["inputs"]), key=lambda one: len(ancestors[one]))]
        if last["op"] in ("BatchNorm", "Convolution"):  # its second input is gamma, or the weight
            parameter = parameters[nodes[last["inputs"][1][0]]["name"]]
            parameter.set_data(parameter.data() / len(sums) ** 0.5)


class Model:
    def __init__(self, symbol, params, data_name):
        self.symbol, self.data_name = mx.sym.load(symbol), data_name
        self.params = mx.nd.load(params)
        if isinstance(self.params, list):  # without names: of a symbol without parameters
            self.params = {}
        self.files = symbol, params
        self.ways = {}

    def run(self, x, symbol):
        return [output.asnumpy() for output in self.executor(x, symbol).forward(is_train=False)]

    def executor(self, x, symbol):
        kept = {}
        for name, value in self.params.items():
            kept[name.split(":", 1)[-1]] = value
        arguments = {n: kept[n] for n in symbol.list_arguments() if n in kept}
        arguments[self.data_name] = mx.nd.array(x)
        for name in symbol.list_arguments():
            if name not in arguments:
                arguments[name] = mx.nd.zeros((x.shape[0],))  # the label of a softmax head
        states = {n: kept[n] for n in symbol.list_auxiliary_states()}
        return symbol.bind(mx.cpu(), arguments, aux_states=states, grad_req="null")

    def prepare(self, way, x):
        """Prepare a function that runs this input and returns its outputs, which MXNet computes lazily."""
        if way == "executor":
            executor = self.executor(x, self.symbol)
            self.ways[way] = lambda: executor.forward(is_train=False)
            return
        symbol, params = self.files
        block = mx.gluon.SymbolBlock.imports(symbol, [self.data_name], params)
        block.hybridize(static_alloc=True, static_shape=True)
        data = mx.nd.array(x)

        def run():
            outputs = block(data)
            return outputs if isinstance(outputs, (list, tuple)) else [outputs]

        self.ways[way] = run

    def reply(self, head, x):
        request = head["request"]
        if request == "run":
            return [("output", output) for output in self.run(x, self.symbol)]
        if request == "prepare":
            self.prepare(head["way"], x)
            return []
        if request == "outputs":
            return [("output", output.asnumpy()) for output in self.ways[head["way"]]()]
        if request == "time":
            run = self.ways[head["way"]]
            return [("times_s", serving.time_runs(lambda: [one.wait_to_read() for one in run()], head["count"]))]
        internals = self.symbol.get_internals()
        names = [n for n in internals.list_outputs() if n.endswith("_output") or n.endswith("_output0")]
        group = mx.sym.Group([internals[n] for n in names])
        return list(zip(names, self.run(x, group)))


if sys.argv[1] == "export":
    export(*sys.argv[2:])
else:
    serving.serve(lambda: Model(*sys.argv[1:4]))
