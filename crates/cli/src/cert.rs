//! `forebay cert self-signed`: a certificate for trying TLS out.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;

use crate::exit::{Exit, say};
use crate::print::{Output, print};
use crate::safe::printable;

#[derive(Debug, Args)]
pub(crate) struct Cert {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Write a certificate that is signed by itself, and its private key.
    #[command(after_help = EXAMPLES)]
    SelfSigned(SelfSigned),
}

const EXAMPLES: &str = "\
Clients recognise the server by this certificate alone: give it to them as --ca. For anything lasting, use a
certificate of an authority.

Examples:
  forebay cert self-signed --name localhost --name 127.0.0.1
  forebay cert self-signed --name queue.example.com --cert /etc/forebay/cert.pem --key /etc/forebay/key.pem
  forebay serve --tls-cert cert.pem --tls-key key.pem
  forebay stream list --server https://localhost:7070 --ca cert.pem";

#[derive(Debug, Args)]
struct SelfSigned {
    /// A name or an IP address by which clients call the server. May be given several times.
    #[arg(long, value_name = "NAME", default_values = ["localhost", "127.0.0.1", "::1"], hide_default_value = true)]
    name: Vec<String>,
    /// The file for the certificate.
    #[arg(long, value_name = "FILE", default_value = "cert.pem")]
    cert: PathBuf,
    /// The file for the private key, which only its owner can read.
    #[arg(long, value_name = "FILE", default_value = "key.pem")]
    key: PathBuf,
}

pub(crate) fn run(cert: &Cert, output: Output) -> anyhow::Result<()> {
    let CertCommand::SelfSigned(options) = &cert.command;
    let invalid = || {
        format!("name must be a host name or an IP address. value=`{}`", printable(&options.name.join(",")))
    };
    let mut params =
        CertificateParams::new(options.name.clone()).context(Exit::NotUnderstood).with_context(invalid)?;
    params.distinguished_name.push(DnType::CommonName, options.name.first().map_or("forebay", |name| name));
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params.self_signed(&key).context("cannot make a certificate")?;
    write(&options.key, &pem("PRIVATE KEY", &key.serialize_der()), 0o600)?;
    write(&options.cert, &pem("CERTIFICATE", certificate.der()), 0o644)?;
    let [cert, key] = [&options.cert, &options.key].map(|path| printable(&path.display().to_string()));
    match output {
        Output::Text => {
            say(&format!("wrote {cert} and {key}, for {}", printable(&options.name.join(", "))));
            Ok(())
        }
        Output::Json => print(&format!("{}\n", json!({ "cert": cert, "key": key, "names": options.name }))),
    }
}

/// Bytes in the format that all TLS programs read.
fn pem(label: &str, bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    let lines: String = text.as_bytes().chunks(64).map(|line| format!("{}\n", line.escape_ascii())).collect();
    format!("-----BEGIN {label}-----\n{lines}-----END {label}-----\n")
}

/// Writes a new file. A file that is there stays.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let shown = printable(&path.display().to_string());
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(|| format!("cannot create the file {shown}"))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write the file {shown}"))
}
