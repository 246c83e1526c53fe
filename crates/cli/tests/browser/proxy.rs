//! A proxy that serves the dashboard below a path, in a few lines: one request on each connection.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Serves the server at this address below `prefix`, until the test ends. Returns the proxy's own address.
pub(crate) fn below(prefix: &'static str, server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("an address").to_string();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = server.clone();
            std::thread::spawn(move || carry(prefix, client, &server));
        }
    });
    address
}

fn carry(prefix: &str, mut client: TcpStream, server: &str) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).ok()?;
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8(head).ok()?;
    let (first, rest) = head.split_once("\r\n")?;
    let mut words = first.split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let Some(path) = path.strip_prefix(prefix).filter(|path| path.starts_with('/')) else {
        // Everything outside of the prefix belongs to others.
        return client.write_all(b"HTTP/1.1 404 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok();
    };
    let kept = rest.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let kept: Vec<&str> = kept.filter(|line| !line.is_empty()).collect();
    let mut upstream = TcpStream::connect(server).ok()?;
    let request = format!("{method} {path} {version}\r\n{}\r\nconnection: close\r\n\r\n", kept.join("\r\n"));
    upstream.write_all(request.as_bytes()).ok()?;
    let (mut from_client, mut to_server) = (client.try_clone().ok()?, upstream.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut upstream, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    Some(())
}
