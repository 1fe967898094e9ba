"""Compiles the kernels of crates/cuda as the program does at run time, for several shapes; run by check-cuda-kernels.sh."""

import ctypes
import pathlib
import re
import sys

CRATE = pathlib.Path(__file__).parent.parent / "crates/cuda"
# The files and their order are those of the program.
SOURCES = re.findall(r'include_str!\("\.\./kernels/([^"]+)"\)', (CRATE / "src/kernels.rs").read_text())
# D, H, Hkv, Dh, F, V
SHAPES = [
    (896, 16, 16, 64, 2432, 32000), (256, 4, 4, 64, 704, 4096), (2048, 16, 4, 128, 5504, 32000), (576, 9, 3, 64, 1536, 49152),
    (100, 3, 1, 18, 77, 301), (512, 2, 2, 256, 1408, 9001),
]


def main() -> int:
    nvrtc = ctypes.CDLL(sys.argv[1])
    architectures = sys.argv[2:] or ["sm_90"]
    version = (ctypes.c_int(), ctypes.c_int())
    nvrtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    print(f"NVRTC {version[0].value}.{version[1].value}")
    if not SOURCES:
        sys.exit("crates/cuda/src/kernels.rs names no source files with include_str!: adapt the pattern of SOURCES")
    source = "".join(f'#line 1 "{name}"\n{(CRATE / "kernels" / name).read_text()}' for name in SOURCES).encode()
    failed = 0
    for architecture in architectures:
        for bf16 in (1, 0):
            for width, heads, kv_heads, head_dim, ffn, vocabulary in SHAPES:
                widths = (width, heads * head_dim, kv_heads * head_dim, ffn, vocabulary)
                vector = 8 if all(n % 8 == 0 for n in widths) else 1
                tensor = int(bf16 and head_dim % 16 == 0 and head_dim <= 128)
                defines = dict(BF16=bf16, WIDTH=width, HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, FFN=ffn,
                               VOCABULARY=vocabulary, VECTOR=vector, TENSOR_ATTENTION=tensor)
                options = [f"--gpu-architecture={architecture}", "--std=c++17"]
                if architecture.startswith("sm_"):
                    options.append("--ptxas-options=-v")
                options += [f"-D{key}={value}" for key, value in defines.items()]
                program = ctypes.c_void_p()
                nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"dipaco.cu", 0, None, None)
                encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
                code = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
                size = ctypes.c_size_t()
                nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
                log = ctypes.create_string_buffer(size.value)
                nvrtc.nvrtcGetProgramLog(program, log)
                failed += code != 0
                shape = f"D {width} H {heads}/{kv_heads} Dh {head_dim} F {ffn} V {vocabulary}"
                print(f"{architecture} {'bf16' if bf16 else 'f32'} {shape}: {'FAILED' if code else 'compiles'}")
                text = log.value.decode()
                print_log(text, code)
                nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return 1 if failed else 0


def print_log(text: str, code: int) -> None:
    """All of a failure's log; of a success, warnings and each kernel's registers, spills and shared memory."""
    kernel = ""
    for line in text.splitlines():
        if "Compiling entry function" in line:
            kernel = line.split("'")[1]
        elif "Used" in line or "spill" in line and "0 bytes spill stores" not in line:
            print(f"  {kernel}: {line.split(':')[-1].strip()}")
        elif code or "warning" in line:
            print(line)


if __name__ == "__main__":
    sys.exit(main())
