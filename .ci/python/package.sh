# Sourced: builds the Python package (debug) and puts it on PYTHONPATH. $package is its folder, for the caller to remove.

# The features of .ci/run's tests, so that nothing is built twice: the example asks for those of dev-dependencies.
cargo build -q --workspace --lib --bins --example suspect_features --features annals-server/middleware
target=$(realpath "${CARGO_TARGET_DIR:-target}")
package=$(mktemp -d)
cp -r server/python/python/annals "$package/annals"
cp "$target/debug/libannals_python.so" "$package/annals/_annals.abi3.so"
export PYTHONPATH=$package
