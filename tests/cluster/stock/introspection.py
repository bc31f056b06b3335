"""What JAX can ask about devices and programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import core, effects
from jax._src.interpreters import mlir
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P


def test_devices(devices):
    assert [repr(d) for d in devices] == [f"CpuDevice(id={i})" for i in range(4)]
    assert [str(d) for d in devices] == [f"cpu:{i}" for i in range(4)]
    assert [d.id for d in devices] == [0, 1, 2, 3]
    assert {(d.platform, d.device_kind, d.process_index) for d in devices} == {("cpu", "cpu", 0)}
    assert [d.slice_index for d in devices] == [0, 0, 1, 1]
    assert [d.task_id for d in devices] == [0, 0, 0, 0]  # within a slice
    assert len({(d.slice_index, tuple(d.coords), d.core_on_chip) for d in devices}) == 4
    assert all(isinstance(d.colocation_id, int) for d in devices)
    assert len({d.local_hardware_id for d in devices}) >= 1


def test_processes(devices):
    assert (jax.process_index(), jax.process_count()) == (0, 1)
    assert jax.local_devices() == devices and jax.device_count() == jax.local_device_count() == 4
    assert jax.default_backend() == "cpu" or jax.default_backend() == "proxy"
    assert devices[0].client.platform == "cpu"


def test_memories(devices):
    for device in devices:
        assert device.default_memory().kind == "device"
        kinds = {memory.kind for memory in device.addressable_memories()}
        assert kinds == {"device", "pinned_host", "unpinned_host"}
        assert device.memory("pinned_host").kind == "pinned_host"


@pytest.fixture(scope="module")
def compiled(grid):
    spec = NamedSharding(grid, P("slice", "device"))
    argument = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=spec)
    return jax.jit(lambda a: (a @ a, a.sum()), donate_argnums=0).lower(argument).compile()


def test_costs_and_memory(compiled):
    assert compiled.cost_analysis()["flops"] > 0
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes == 8 * 8 * 4 // 4
    assert memory.output_size_in_bytes >= 8 * 8 * 4 // 4


def test_text(compiled):
    text = compiled.as_text()
    assert "HloModule" in text and "all-reduce" in text


def test_shardings_of_a_program(compiled, grid):
    (inputs, _), outputs = compiled.input_shardings, compiled.output_shardings
    assert inputs[0].is_equivalent_to(NamedSharding(grid, P("slice", "device")), 2)
    assert outputs[1].is_fully_replicated and len(outputs[0].device_set) == 4


def test_a_compiled_program_runs(compiled, grid):
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    product, total = compiled(jax.device_put(host, NamedSharding(grid, P("slice", "device"))))
    np.testing.assert_allclose(product, host @ host)
    assert float(total) == host.sum()


def test_fingerprint(compiled):
    assert compiled.runtime_executable().fingerprint


def test_layouts(devices):
    compiled = jax.jit(lambda a: a.T).lower(jax.ShapeDtypeStruct((3, 4), np.float32)).compile()
    (inputs, _) = compiled.input_formats
    assert tuple(inputs[0].layout.major_to_minor) == (0, 1)
    assert tuple(jnp.ones((3, 4)).format.layout.major_to_minor) == (0, 1)


def test_a_layout_of_ones_own(devices):
    column_major = Format(Layout((1, 0)), SingleDeviceSharding(devices[1]))
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = jax.jit(lambda a: a + 0, out_shardings=column_major)(jax.device_put(host, devices[1]))
    assert tuple(array.format.layout.major_to_minor) == (1, 0)
    np.testing.assert_array_equal(array, host)
    np.testing.assert_array_equal(jax.jit(lambda a: a * 2)(array), host * 2)
    np.testing.assert_array_equal(jax.device_put(array, devices[2]), host)


def test_export(line):
    def function(a):
        return jnp.cos(a) + a.sum()

    sharding = NamedSharding(line, P("x"))
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding))
    again = jax.export.deserialize(exported.serialize())
    host = np.arange(8, dtype=np.float32)
    got = jax.jit(again.call)(jax.device_put(host, sharding))
    np.testing.assert_allclose(got, np.cos(host) + host.sum(), rtol=1e-5)


def test_ahead_of_time(devices):
    lowered = jax.jit(lambda a: a * 3).lower(jnp.ones(2))
    assert "stablehlo" in lowered.as_text()
    assert lowered.compile()(jnp.ones(2)).tolist() == [3, 3]


def test_a_trace_of_the_client(tmp_path):
    with jax.profiler.trace(tmp_path):
        jnp.ones(3).block_until_ready()
    assert any(tmp_path.rglob("*.xplane.pb"))


def test_compiler_options(devices):
    options = {"xla_cpu_enable_fast_math": False}
    assert float(jax.jit(lambda a: a + 1).lower(jnp.float32(1)).compile(options)(jnp.float32(1))) == 2


# ---- tokens ----


class Ordered(effects.Effect):
    """An effect whose programs run in order: each takes a token of the one before and gives one to the next."""

    def __str__(self):
        return "Ordered"


ORDERED = Ordered()


@pytest.fixture(scope="module")
def in_order():
    for kinds in (effects.lowerable_effects, effects.ordered_effects, effects.shardable_ordered_effects):
        kinds.add_type(Ordered)
    primitive = core.Primitive("in_order")
    primitive.def_effectful_abstract_eval(lambda a: (core.ShapedArray(a.shape, a.dtype), {ORDERED}))

    def lower(context, a):
        token = mlir.TokenSet({ORDERED: context.tokens_in.get(ORDERED)})
        context.set_tokens_out(context.tokens_in.update_tokens(token))
        return [a]

    mlir.register_lowering(primitive, lower)
    return lambda a: primitive.bind(a * 2) + 1


def test_tokens_go_from_program_to_program(line, in_order):
    program = jax.jit(in_order)
    exported = jax.jit(jax.export.export(program)(jax.ShapeDtypeStruct((8,), np.float32)).call)
    host, mesh = np.arange(8, dtype=np.float32), line
    for place in (mesh.devices[0], NamedSharding(Mesh(mesh.devices[:2], ("x",)), P("x")), NamedSharding(mesh, P("x"))):
        array = jax.device_put(host, place)
        np.testing.assert_array_equal(program(program(array)), host * 4 + 3)
        if place is mesh.devices[0]:
            np.testing.assert_array_equal(exported(exported(array)), host * 4 + 3)
        jax.effects_barrier()
