//! Builds the two libraries that are preloaded into programs (server/preload): one for clocks and randomness,
//! one for the network. The server's binary embeds both.
//!
//! Each is one compiler call. A library has no dependencies and uses `panic=abort`, because nothing may
//! unwind through another program's frames. On systems where a library cannot be loaded, the embedded file is
//! empty.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../preload/src");
    let target = ["CARGO_CFG_TARGET_OS", "CARGO_CFG_TARGET_ENV", "CARGO_CFG_TARGET_ARCH"].map(variable);
    let [system, library, machine] = target.each_ref().map(String::as_str);
    let is_linux = system == "linux" && matches!(machine, "x86_64" | "aarch64");
    build("preload", "lib.rs", &[], is_linux && library == "gnu");
    // Has no dependencies, not even the C library: it loads into programs of every C library.
    build("network", "network_library.rs", &["-C", "link-arg=-nostdlib"], is_linux);
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Builds `preload/src/ROOT` into `OUT_DIR/NAME.so`; writes an empty file if it cannot be loaded here.
fn build(name: &str, root: &str, more: &[&str], is_here: bool) {
    let library = Path::new(&variable("OUT_DIR")).join(format!("{name}.so"));
    if !is_here {
        write(&library);
        return;
    }
    let mut command = Command::new(variable("RUSTC"));
    let name = format!("annals_{name}");
    command.args(["--crate-name", &name, "--crate-type", "cdylib", "--edition", "2024", "--cfg", &name]);
    command.args(["--cap-lints", "allow", "-O", "-C", "panic=abort", "-C", "strip=symbols"]);
    // It is loaded into every process of a program: symbols are bound at load time, so that no call runs the
    // linker.
    command.args(["-C", "link-arg=-Wl,-z,now", "-C", "codegen-units=1", "--target", &variable("TARGET")]);
    command.args(more);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        command.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    command.arg(Path::new("../preload/src").join(root)).arg("-o").arg(&library);
    match command.status() {
        Ok(status) if status.success() => (),
        failed => {
            println!("cargo::error=the library {name} cannot be built: {failed:?}");
            std::process::exit(1);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a build script has no other door, and fails like this"
)]
fn write(library: &Path) {
    std::fs::write(library, []).expect("the output directory can be written to");
}
