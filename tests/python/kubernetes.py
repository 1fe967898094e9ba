"""Checks manifests against the published schemas of the three newest versions of Kubernetes.

Arguments: folder of the manifests. Prints JSON: the number of checked documents; for each container its arguments and its
image; for each job with a number of parts that number as its container and as Kubernetes reads it; the names of ConfigMaps, and
those that containers refer to.
"""
import json
import pathlib
import sys

import kubernetes_validate
import yaml

versions = [str(version) for version in sorted(kubernetes_validate.utils.all_versions())]
newest = sorted({tuple(int(part) for part in version.split(".")[:2]) for version in versions})[-3:]
checked, commands, images, parts = 0, {}, {}, {}
maps, references = set(), set()
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml")):
    for document in yaml.safe_load_all(file.read_text()):
        if file.name == "kustomization.yaml":
            missing = [name for name in document["resources"] if not (file.parent / name).exists()]
            assert not missing, missing
            continue
        for version in newest:
            kubernetes_validate.validate(document, ".".join(map(str, version)), strict=True)
            checked += 1
        if document["kind"] == "ConfigMap":
            maps.add(document["metadata"]["name"])
        spec = document.get("spec", {})
        for container in spec.get("template", {}).get("spec", {}).get("containers", []):
            commands[container["name"]] = container["args"]
            images[container["name"]] = container["image"]
            sources = [source["configMapRef"]["name"] for source in container.get("envFrom", []) if "configMapRef" in source]
            references.update(sources)
            for variable in container.get("env", []):
                if variable["name"] == "JOB_COMPLETIONS":
                    parts[document["metadata"]["name"]] = [variable["value"], str(spec["completions"])]
found = {"checked": checked, "commands": commands, "images": images, "parts": parts}
print(json.dumps(found | {"maps": sorted(maps), "references": sorted(references)}))
