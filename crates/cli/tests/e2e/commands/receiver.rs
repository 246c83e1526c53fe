//! A listener for requests that the server makes to services of others.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request as it came.
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find_map(|line| {
            let (of, value) = line.split_once(':')?;
            of.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// Takes requests on this socket until the test ends. The first ones are answered with these statuses.
pub(crate) fn listen(listener: TcpListener, mut refusals: Vec<u16>) -> Receiver<Request> {
    let (sender, came) = channel();
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let status = if refusals.is_empty() { 204 } else { refusals.remove(0) };
            serve(socket, status, &sender);
        }
    });
    came
}

fn serve(mut socket: TcpStream, status: u16, sender: &Sender<Request>) {
    let mut reader = BufReader::new(socket.try_clone().expect("a socket"));
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        match line.trim() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines[0].split(' ').nth(1).expect("a path").to_owned();
    let mut request = Request { path, headers: lines.split_off(1), body: Vec::new() };
    let length = request.header("content-length").parse().expect("a number");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    request.body = body;
    let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let _ = socket.write_all(answer.as_bytes());
    let _ = sender.send(request);
}
