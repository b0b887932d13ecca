"""The repository: imports go one way, the core stands on jax, numpy and scipy, the wheel installs and imports."""

import ast
import graphlib
import importlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.x64("the package is the same in both precisions: once is enough")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ergodrift"

# The rooms, from the ground up.
ORDER = [
    "types", "_core", "datasets", "geometry", "problem", "data", "trust", "methods", "advice", "solve", "theory",
    "engine", "metrics", "sklearn", "optax", "torch", "skfolio", "distributed", "problems", "experiments", "peers",
    "tables", "report", "cli",
]  # fmt: skip
# Faces towards packages that are extras: what each may import at its top level. The core enters none of them.
FACES = {"sklearn": {"sklearn", "pandas"}, "optax": {"optax"}, "torch": {"torch"}, "skfolio": {"skfolio", "sklearn"}}
CORE = ORDER[: ORDER.index("sklearn")]


def imports(path):
    """(module, whether at the top level) for every import in a file."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            yield name, node in tree.body


def test_every_module_has_its_place():
    found = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert found - {"__init__", "__pycache__"} == set(ORDER)


def test_modules_import_only_what_stands_before_them():
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        for name, _ in imports(path):
            used = name.split(".")[1] if name.startswith("ergodrift.") else ""
            if used in ORDER:
                assert used == module or ORDER.index(used) < ORDER.index(module), f"{module} imports {used}"


def test_no_modules_import_each_other_lazily_or_not():
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items() if path.name != "__init__.py"}
    used = {name: {other for other, _ in imports(path)} & set(modules) for name, path in modules.items()}
    list(graphlib.TopologicalSorter(used).static_order())  # raises CycleError


def test_the_core_imports_jax_numpy_and_scipy_only():
    allowed = {"jax", "numpy", "scipy", "ergodrift", *sys.stdlib_module_names}
    for path in PACKAGE.rglob("*.py"):
        used = {name.split(".")[0] for name, top_level in imports(path) if top_level}
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert used <= allowed | FACES.get(room, set()), f"{path.name} imports {used - allowed}"
        if room in CORE:
            others = {f"ergodrift.{name}" for name in FACES} & {name for name, _ in imports(path)}
            assert not others, f"{path.name} imports {others}, which needs an extra"


@pytest.mark.parametrize("face", ["sklearn", "optax", "torch", "skfolio"])
def test_a_face_without_its_package_says_what_to_install(face, monkeypatch):
    monkeypatch.setitem(sys.modules, face, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, f"ergodrift.{face}", raising=False)
    with pytest.raises(
        ModuleNotFoundError, match=rf"ergodrift\.{face} needs {face}: pip install 'ergodrift\[{face}\]'"
    ):
        importlib.import_module(f"ergodrift.{face}")


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment_and_imports(tmp_path):
    """The environment holds the wheel alone; its dependencies are lent by path, since they are large."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ergodrift-*.whl")
    empty = tmp_path / "empty"
    venv.create(empty, with_pip=True)
    python = empty / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    import jax

    code = (
        "import sys; home = [p for p in sys.path if p.endswith('site-packages')]\n"
        f"sys.path.append({str(Path(jax.__file__).parents[1])!r})\n"
        "import ergodrift as ed\n"
        "assert ed.__file__.startswith(home[0]), ed.__file__\n"
        "import numpy as np\n"
        "source = ed.IIDSource(np.ones((2, 1), np.float32))\n"
        "problem = ed.Problem(lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: x - 0.5, ed.Ball(1.0))\n"
        "print(ed.run(ed.dpp(), problem, source, x0=np.zeros(1, np.float32), num_samples=10))\n"
    )
    out = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert out.strip() == "Result(DPP-t: 1 seeds, 10 records)"
    listing = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True).stdout
    assert "ergodrift/py.typed" in listing
    assert "tests/" not in listing
    assert "studies" not in listing


def test_importing_sets_xla_flags_before_xla_starts_and_leaves_the_users_alone():
    """The flag has its effect: a loop over kilobytes is compiled into one function."""
    code = (
        "import jax, jax.numpy as jnp, ergodrift\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "loop = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: x * 2 + i, x)).lower(jnp.ones(4096))\n"
        "print('xla_cpu_small_call' in loop.compile().as_text())\n"
    )

    def run(**environment):
        full = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=full)
        return done.stdout.strip()

    assert run(XLA_FLAGS="") == "True"
    assert run(XLA_FLAGS="--xla_force_host_platform_device_count=2") == "True"
    assert run(XLA_FLAGS="--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=16") == "False"


def test_names_are_found_by_any_way_in():
    """Rooms that are imported by their paths take no name of the package away."""
    import ergodrift

    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()}
    assert set(ergodrift.__all__) & rooms == {"metrics", "theory"}
    code = (
        "import ergodrift, sys, types; assert 'jax' not in sys.modules\n"
        "import ergodrift.peers\n"
        "found = {name: getattr(ergodrift, name) for name in ergodrift.__all__}\n"
        "assert [name for name in found if isinstance(found[name], types.ModuleType)] == ['metrics', 'theory']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_precisions_have_constants_of_their_own_whichever_name_is_asked_for_first():
    code = (
        "import numpy as np, ergodrift as ed; ed.certify\n"
        "from ergodrift._core import precision\n"
        "from jax._src import dtypes\n"
        "import jax\n"
        "array = np.zeros(1)\n"
        "with jax.enable_x64(False): narrow = dtypes.canonicalize_value(array)\n"
        "with jax.enable_x64(True): assert dtypes.canonicalize_value(array) is not narrow\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dir_lists_all_names_before_they_are_asked_for():
    code = "import ergodrift as ed; print(sorted(set(ed.__all__) - set(dir(ed))))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    import ergodrift

    assert all(hasattr(ergodrift, name) for name in dir(ergodrift))


def test_constraints_are_counted_from_0():
    """Wherever one is named by a number: none is named by its number and one."""
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]:
        text = path.read_text()
        assert not re.search(r"constraint \{\w+ \+ 1", text), path
        assert not re.search(r"(infeasibility|violation)_2", text), path
