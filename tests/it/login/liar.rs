//! A directory that lies: it answers each question with whatever a test wants.

use std::sync::Arc;

use gvm::config::LdapConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Tags of what is asked.
pub const BIND: u8 = 0x60;
pub const SEARCH: u8 = 0x63;

/// An element of BER.
pub fn element(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match body.len() {
        short @ ..128 => out.push(u8::try_from(short).unwrap()),
        long => {
            out.push(0x84);
            out.extend(u32::try_from(long).unwrap().to_be_bytes());
        }
    }
    out.extend(body);
    out
}

/// A message with that number.
pub fn message(id: u8, operation: &[u8]) -> Vec<u8> {
    element(0x30, &[&element(0x02, &[id]), operation].concat())
}

/// The end of an operation: 0x61 of a bind, 0x65 of a search.
pub fn result(tag: u8, code: u8) -> Vec<u8> {
    element(tag, &[element(0x0a, &[code]), element(0x04, b""), element(0x04, b"")].concat())
}

/// An entry with these attributes.
pub fn entry(dn: &str, attributes: &[(&str, &[&str])]) -> Vec<u8> {
    let attributes: Vec<u8> = attributes
        .iter()
        .flat_map(|(name, values)| {
            let values: Vec<u8> = values.iter().flat_map(|value| element(0x04, value.as_bytes())).collect();
            element(0x30, &[element(0x04, name.as_bytes()), element(0x31, &values)].concat())
        })
        .collect();
    element(0x64, &[element(0x04, dn.as_bytes()), element(0x30, &attributes)].concat())
}

/// Answers a question by its number and tag.
pub type Lie = dyn Fn(u8, u8) -> Vec<u8> + Send + Sync;

/// Starts one; it lives as long as the test.
pub async fn start(lie: Arc<Lie>) -> LdapConfig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ldap://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let lie = lie.clone();
            tokio::spawn(async move {
                let mut question = vec![0; 4096];
                loop {
                    match stream.read(&mut question).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                    // Sequence, length, number of one byte, operation: our own questions are short.
                    let answer = lie(question[4], question[5]);
                    if stream.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    LdapConfig { url, base: "dc=x".to_owned(), ..LdapConfig::default() }
}
