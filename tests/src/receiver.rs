//! [`Receiver`]: a web server on loopback that takes what is posted to it, and answers as the test wants.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

/// How a request is answered.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// With this status.
    Status(u16),
    /// With 200, after so long.
    Late(Duration),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method, path and headers, as sent.
    pub head: String,
    /// The body.
    pub body: Value,
}

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Starts one at any port; `answer` is told how many requests there were before.
    #[track_caller]
    pub fn start(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Receiver {
        Receiver::start_at("127.0.0.1:0".parse().expect("it is an address"), answer)
    }

    /// Starts one at this address.
    #[track_caller]
    pub fn start_at(
        address: SocketAddr,
        answer: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Receiver {
        let listener = TcpListener::bind(address).expect("the port is free");
        let address = listener.local_addr().expect("it listens");
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (taken, answer) = (requests.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (taken, answer) = (taken.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &taken, &*answer));
            }
        });
        Receiver { address, requests }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}/rounds", self.address)
    }

    /// What was posted so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, taken: &Mutex<Vec<Request>>, answer: &dyn Fn(usize) -> Answer) {
    let mut reader = BufReader::new(&stream);
    while let Some(request) = read(&mut reader) {
        let before = {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.push(request);
            taken.len() - 1
        };
        let status = match answer(before) {
            Answer::Status(status) => status,
            Answer::Late(time) => {
                std::thread::sleep(time);
                200
            }
        };
        // Err: the client has given up.
        let _ = write!(&stream, "HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n");
    }
}

/// The next request; `None` when the connection ends.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { head, body: serde_json::from_slice(&body).ok()? })
}
