# For scripts that measure, which source it: the Python environment of benches/ and the program to measure.
#
# Sets `root`, `environment` and, unless it names a program already, `BENCH_BINARY`: the build that `scripts/install` makes, made first. PYTHON is
# the Python for the environment (3.11 or later).
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=$root/target/bench-venv
requirements=$root/benches/requirements.txt

# The copy is written last, so that an interrupted installation is repeated.
if ! cmp --silent "$requirements" "$environment/installed.txt"; then
    "${PYTHON:-python3}" -m venv --clear "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$environment/installed.txt"
fi

if [ -z "${BENCH_BINARY:-}" ]; then
    cargo build --profile dist --manifest-path "$root/Cargo.toml"
    BENCH_BINARY=${CARGO_TARGET_DIR:-$root/target}/dist/icechunkfs
fi
