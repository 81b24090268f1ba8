"""The page of licenses: it names every package that an installation may bring, and no other."""

import re
import tomllib

from documents import ROOT
from packaging.requirements import Requirement

OF_DEVELOPMENT = {"dev", "docs"}


def test_every_package_of_an_installation_has_its_license():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {(Requirement(text).name, "") for text in project["dependencies"]}
    for extra, packages in project["optional-dependencies"].items():
        if extra not in OF_DEVELOPMENT:
            required |= {(Requirement(text).name, extra) for text in packages}
    text = (ROOT / "docs" / "licenses.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (?:`(\w+)` )?\| (.+) \|$", text, re.M)
    assert {(name, extra) for name, extra, _ in rows} == required
    assert len(rows) == len(required)
