//! The code of the protocols lies in the tree, so that building the product takes no compiler of protocols, which would
//! be a sixth of all that is compiled. This test writes it anew and compares. `cargo xtask proto` keeps what it wrote.
//!
//! `protox` is a compiler of `.proto` files in Rust, so that not even this takes a tool beside Rust itself.

use std::path::{Path, PathBuf};

use protox::prost::Message as _;
use protox::prost_reflect::prost_types::FileDescriptorSet;

/// Set to keep the generated files.
const KEEP: &str = "FOREBAY_KEEP_GENERATED";

#[test]
fn the_native_api_in_the_tree_is_the_protocol() {
    let (files, out) = compiled("forebay", &["forebay/v1/forebay.proto"]);
    // What a server tells clients that ask it for its services.
    std::fs::write(out.join("forebay.v1.bin"), files.encode_to_vec()).expect("a file can be written");
    // A server that has some of the calls only, as the one that measures has, answers the others with
    // `UNIMPLEMENTED`.
    let by_hand =
        [("Deliveries", "Deliveries"), ("FollowStreamReply", "Followed"), ("FollowLogReply", "Followed")];
    let generator = by_hand.into_iter().fold(generator(), |generator, (message, of)| {
        generator.extern_path(format!(".forebay.v1.{message}"), format!("crate::encoded::{of}"))
    });
    generator.bytes(".").out_dir(&out).compile_fds(files).expect("code for it");
    compare(&out, &["forebay.v1.rs", "forebay.v1.bin"]);
}

#[test]
fn the_protocol_of_keda_in_the_tree_is_the_protocol() {
    let (files, out) = compiled("keda", &["keda/externalscaler.proto"]);
    std::fs::write(out.join("externalscaler.bin"), files.encode_to_vec()).expect("a file can be written");
    generator().out_dir(&out).compile_fds(files).expect("code for it");
    compare(&out, &["externalscaler.rs", "externalscaler.bin"]);
}

#[test]
fn the_protocol_of_kurrent_clients_in_the_tree_is_the_protocol() {
    let files =
        ["gossip", "persistent", "serverfeatures", "streams"].map(|name| format!("kurrent/{name}.proto"));
    let (files, out) = compiled("kurrent", &files.each_ref().map(String::as_str));
    // The clients are for programs that load or torture a server.
    generator().bytes(".").out_dir(&out).compile_fds(files).expect("code for it");
    let client = "event_store.client";
    let names = ["", ".gossip", ".persistent_subscriptions", ".server_features", ".streams"]
        .map(|name| format!("{client}{name}.rs"));
    compare(&out, &names.each_ref().map(String::as_str));
    compare(&out, &["google.rpc.rs"]);
}

fn generator() -> tonic_prost_build::Builder {
    tonic_prost_build::configure().codec_path("crate::codec::Codec").generate_default_stubs(true)
}

/// The protocol of these files, and a folder for its code.
fn compiled(name: &str, files: &[&str]) -> (FileDescriptorSet, PathBuf) {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let files = files.iter().map(|file| protos.join(file));
    let files = protox::compile(files, [&protos]).expect("a protocol");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated").join(name);
    std::fs::create_dir_all(&out).expect("a folder can be made");
    (files, out)
}

/// Holds the files in the tree to those that were written.
fn compare(out: &Path, names: &[&str]) {
    for name in names {
        let generated = std::fs::read(out.join(name)).expect("it was written");
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated").join(name);
        if std::env::var_os(KEEP).is_some() {
            std::fs::write(kept, generated).expect("a file can be written");
        } else {
            let same = std::fs::read(&kept).is_ok_and(|kept| kept == generated);
            assert!(same, "{name} is not what proto/ says any more: run `cargo xtask proto`");
        }
    }
}
