//! Builds the library that is preloaded into programs (server/preload), for it to be carried inside of annals.
//!
//! It is one compiler call: the library has no dependencies, and wants another way to end than the rest (`panic=abort`: nothing may
//! unwind through another program's frames). Where there is no such library, what is carried is empty.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=preload/src");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let library = Path::new(&variable("OUT_DIR")).join("preload.so");
    let here = variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_CFG_TARGET_ENV") == "gnu"
        && matches!(variable("CARGO_CFG_TARGET_ARCH").as_str(), "x86_64" | "aarch64");
    if !here {
        write(&library);
        return;
    }
    let mut command = Command::new(variable("RUSTC"));
    command.args(["--crate-name", "annals_preload", "--crate-type", "cdylib", "--edition", "2024"]);
    command.args([
        "--cfg",
        "annals_preload",
        "--cap-lints",
        "allow",
        "-O",
        "-C",
        "panic=abort",
        "-C",
        "strip=symbols",
    ]);
    // It is loaded into every process of a program: all symbols are bound when it is, so that no call of it meets the linker.
    command.args(["-C", "link-arg=-Wl,-z,now", "-C", "codegen-units=1", "--target", &variable("TARGET")]);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        command.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    command.arg("preload/src/lib.rs").arg("-o").arg(&library);
    match command.status() {
        Ok(status) if status.success() => (),
        failed => {
            println!("cargo::error=the preloaded library cannot be built: {failed:?}");
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
