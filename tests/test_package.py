"""The repository: imports go one way, the core stands on jax, numpy and scipy, the wheel installs and imports."""

import ast
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ergodrift"

ORDER = [
    "files", "tree", "types", "check", "geometry", "problem", "sampler", "chain", "source", "estimator", "schedule",
    "method", "algorithms", "expectation", "region", "reference", "feasibility", "theory", "loop", "progress",
    "checkpoint", "run", "metrics", "problems", "experiments", "report", "cli",
]  # fmt: skip


def imports(path):
    """(module, whether at the top level) for every import in a file."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "ergodrift":
            names = [f"ergodrift.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
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
            if name.startswith("ergodrift."):
                used = name.split(".")[1]
                assert used == module or ORDER.index(used) < ORDER.index(module), f"{module} imports {used}"


def test_the_core_imports_jax_numpy_and_scipy_only():
    allowed = {"jax", "numpy", "scipy", "ergodrift", *sys.stdlib_module_names}
    for path in PACKAGE.rglob("*.py"):
        used = {name.split(".")[0] for name, top_level in imports(path) if top_level}
        assert used <= allowed, f"{path.name} imports {used - allowed}"


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
