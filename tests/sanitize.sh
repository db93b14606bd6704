#!/usr/bin/env bash
# Builds the native core with the address and undefined-behaviour sanitizers and runs its tests.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/sanitize
.venv/bin/pip install --quiet --no-deps --upgrade --target $build/package \
    --config-settings=cmake.define.BRCTC_SANITIZE=ON --config-settings=cmake.build-type=RelWithDebInfo .
# -S: without the hook of the editable install, which would win over PYTHONPATH.
run() {
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
        PYTHONPATH="$build/package:$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')" \
        .venv/bin/python -S "$@"
}
# torch leaks at exit by design
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 OMP_NUM_THREADS=1
run -c "import brctc._native as n; assert 'sanitize' in n.__file__, n.__file__; print('testing', n.__file__)"
if [ $# -eq 0 ]; then
    set -- tests/kernels/test_inputs.py tests/test_enumeration.py tests/test_native.py tests/test_bad_input.py tests/test_align.py tests/test_exactness.py \
        tests/test_transducer.py tests/test_transducer_float32.py tests/test_transducer_torch.py
fi
# not captured: a sanitizer ends the process with its report
run -m pytest -p no:cacheprovider --capture=no "$@"
