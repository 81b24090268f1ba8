import json
from types import SimpleNamespace

from vidc.compiler.build.compile import ENGINE_NAME
from vidc.compiler.build.stages import package_step
from vidc.compiler.config.resolve import resolve


def test_what_backends_note_is_said_once_with_the_components_it_is_about(tmp_path):
    settings = resolve("tiny", gpu="cpu", environ={})
    notes = {"denoise": ["no library"], "kv_update": ["no library", "no head size 24"]}
    results = {}
    for name in settings.model.components:
        folder = tmp_path / name
        folder.mkdir()
        (folder / ENGINE_NAME).write_text(json.dumps({"notes": notes.get(name, [])}))
        results[f"compile:{name}"] = SimpleNamespace(path=folder)
    assert package_step(settings).notes(results) == [
        "denoise, kv_update: no library",
        "kv_update: no head size 24",
    ]
