"""Checks manifests against the published schemas of the three newest versions of Kubernetes.

Arguments: folder of the manifests. Prints JSON: for each container its arguments, and the number of checked documents.
"""
import json
import pathlib
import sys

import kubernetes_validate
import yaml

versions = [str(version) for version in sorted(kubernetes_validate.utils.all_versions())]
newest = sorted({tuple(int(part) for part in version.split(".")[:2]) for version in versions})[-3:]
checked, commands = 0, {}
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml")):
    for document in yaml.safe_load_all(file.read_text()):
        if file.name == "kustomization.yaml":
            missing = [name for name in document["resources"] if not (file.parent / name).exists()]
            assert not missing, missing
            continue
        for version in newest:
            kubernetes_validate.validate(document, ".".join(map(str, version)), strict=True)
            checked += 1
        template = document["spec"].get("template", {}).get("spec", {})
        for container in template.get("containers", []):
            commands[container["name"]] = container["args"]
print(json.dumps({"checked": checked, "commands": commands}))
