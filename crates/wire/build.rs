//! Compiles the protocol. `protox` is a compiler for `.proto` files in Rust, so that building needs no
//! tool beside Rust itself.

use std::path::{Path, PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new("../../proto");
    println!("cargo:rerun-if-changed={}", protos.display());
    let files = protox::compile([protos.join("forebay/v1/forebay.proto")], [protos])?;
    // What a server tells those who ask it for its services.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("a build script has a folder to write to")?);
    std::fs::write(out.join("forebay.v1.bin"), files.encode_to_vec())?;
    // A server that has some of the calls only, as the one that measures has, answers the others with
    // `UNIMPLEMENTED`.
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .generate_default_stubs(true)
        .compile_fds(files)?;
    Ok(())
}
