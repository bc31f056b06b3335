"""Tells null_proxy what types a program has, which it can't read for itself.

Reads programs from stdin, each as a line with its size in bytes followed by a StableHLO portable artifact, and answers
each with one line: `out KIND DIMS SHARD_BYTES OPSHARDING` per output, `in OPSHARDING` per parameter and `donated INDEX` per
donated parameter, separated by ";". DIMS is "2,3" or "-", OPSHARDING the hexadecimal xla.OpSharding, "-" when replicated.
"""

import re
import sys

from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

# Element type: number of DTypeProto.Kind, bytes of an element in a host buffer.
KINDS = {
    "i1": (1, 1),
    "i2": (26, 1),
    "i4": (21, 1),
    "i8": (2, 1),
    "i16": (3, 2),
    "i32": (4, 4),
    "i64": (5, 8),
    "ui2": (27, 1),
    "ui4": (22, 1),
    "ui8": (6, 1),
    "ui16": (7, 2),
    "ui32": (8, 4),
    "ui64": (9, 8),
    "f16": (10, 2),
    "f32": (11, 4),
    "f64": (12, 8),
    "bf16": (16, 2),
    "complex<f32>": (15, 8),
    "complex<f64>": (18, 16),
    "f8E4M3FN": (20, 1),
    "f8E5M2": (19, 1),
    "f8E4M3B11FNUZ": (23, 1),
    "f8E4M3FNUZ": (25, 1),
    "f8E5M2FNUZ": (24, 1),
}


def read_meshes(module):
    """Mesh name -> list of (axis, size)."""
    meshes = {}
    for op in module.body.operations:
        text = str(op)
        found = re.match(r"sdy\.mesh @([\w.]+) = <\[(.*?)\]", text)
        if found:
            meshes[found[1]] = [(a, int(n)) for a, n in re.findall(r'"(\w+)"=(\d+)', found[2])]
    return meshes


def op_sharding(attributes, meshes, rank):
    """Tiles per dimension and the serialized OpSharding that the attributes name; ([1, ...], "-") when replicated."""
    text = str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""
    found = re.match(r"#sdy\.sharding<@([\w.]+), \[(.*?)\](?:, .*)?>$", text)
    dims = re.findall(r"\{(.*?)\}", found[2]) if found else []
    axes_of_dims = [re.findall(r'"(\w+)"', d) for d in dims]
    if not any(axes_of_dims):
        return [1] * rank, "-"
    mesh = meshes[found[1]]
    names = [a for a, _ in mesh]
    sizes = dict(mesh)
    tiles = []
    for axes in axes_of_dims:
        n = 1
        for axis in axes:
            n *= sizes[axis]
        tiles.append(n)
    used = [names.index(a) for axes in axes_of_dims for a in axes]
    rest = [i for i in range(len(names)) if i not in used]
    replicas = 1
    for i in rest:
        replicas *= mesh[i][1]
    sharding = xla_client.OpSharding()
    sharding.type = xla_client.OpSharding.Type.OTHER
    sharding.tile_assignment_dimensions = tiles + ([replicas] if replicas > 1 else [])
    sharding.replicate_on_last_tile_dim = replicas > 1
    sharding.iota_reshape_dims = [n for _, n in mesh]
    sharding.iota_transpose_perm = used + rest
    return tiles, sharding.SerializeToString().hex()


def describe(artifact):
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = hlo.deserialize_portable_artifact(context, artifact)
        meshes = read_meshes(module)
        main = next(
            op
            for op in module.body.operations
            if "sym_name" in op.attributes and op.attributes["sym_name"].value == "main"
        )
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        of_results = main.attributes["res_attrs"] if "res_attrs" in main.attributes else [{}] * len(kind.results)
        of_parameters = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else [{}] * len(kind.inputs)
        fields = []
        for i, result in enumerate(kind.results):
            tiles, sharding = op_sharding(of_results[i], meshes, len(result.shape))
            number, size = KINDS[str(result.element_type)]
            for n, t in zip(result.shape, tiles, strict=True):
                size *= -(-n // t)
            fields.append(f"out {number} {','.join(map(str, result.shape)) or '-'} {size} {sharding}")
        for i, parameter in enumerate(kind.inputs):
            attributes = of_parameters[i]
            fields.append("in " + op_sharding(attributes, meshes, len(parameter.shape))[1])
            if "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes:
                fields.append(f"donated {i}")
        return ";".join(fields)


def main():
    while line := sys.stdin.buffer.readline():
        print(describe(sys.stdin.buffer.read(int(line))), flush=True)


if __name__ == "__main__":
    main()
