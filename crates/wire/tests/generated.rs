//! The code of `forebay.v1` lies in the tree, so that building the product takes no compiler of protocols, which would
//! be a sixth of all that is compiled. This test writes it anew and compares. `cargo xtask proto` keeps what it wrote.
//!
//! `protox` is a compiler of `.proto` files in Rust, so that not even this takes a tool beside Rust itself.

use std::path::{Path, PathBuf};

use protox::prost::Message as _;

/// Set to keep the generated files.
const KEEP: &str = "FOREBAY_KEEP_GENERATED";

#[test]
fn what_lies_in_the_tree_is_what_the_protocol_says() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = here.join("../../proto");
    let files = protox::compile([protos.join("forebay/v1/forebay.proto")], [&protos]).expect("a protocol");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&out).expect("a folder can be made");
    // What a server tells clients that ask it for its services.
    std::fs::write(out.join("forebay.v1.bin"), files.encode_to_vec()).expect("a file can be written");
    // A server that has some of the calls only, as the one that measures has, answers the others with
    // `UNIMPLEMENTED`.
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .generate_default_stubs(true)
        .out_dir(&out)
        .compile_fds(files)
        .expect("code for it");

    for name in ["forebay.v1.rs", "forebay.v1.bin"] {
        let generated = std::fs::read(out.join(name)).expect("it was written");
        let kept = here.join("src/generated").join(name);
        if std::env::var_os(KEEP).is_some() {
            std::fs::write(kept, generated).expect("a file can be written");
        } else {
            let same = std::fs::read(&kept).is_ok_and(|kept| kept == generated);
            assert!(same, "{name} is not what proto/ says any more: run `cargo xtask proto`");
        }
    }
}
