//! Compiles the protocol. `protox` is a compiler for `.proto` files in Rust, so that building needs no
//! tool beside Rust itself.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new("../../proto");
    println!("cargo:rerun-if-changed={}", protos.display());
    let files = protox::compile([protos.join("forebay/v1/forebay.proto")], [protos])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
