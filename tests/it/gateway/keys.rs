//! Which keys open the door, and which do not.

use std::sync::Arc;

use russh::client::{self, AuthResult};
use russh::keys::agent::AgentIdentity;
use russh::keys::signature::Signer as _;
use russh::keys::ssh_key::public::{KeyData, SkEcdsaSha2NistP256, SkEd25519};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey, PublicKey, PublicKeyOrCertificate};
use sha2::{Digest, Sha256};

use crate::support::ssh::{Agent, World, keygen, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_opens_the_door() {
    let world = World::new().await;
    let kinds: [(&str, &[&str]); 5] = [
        ("p256", &["-t", "ecdsa", "-b", "256"]),
        ("p384", &["-t", "ecdsa", "-b", "384"]),
        ("p521", &["-t", "ecdsa", "-b", "521"]),
        ("rsa2048", &["-t", "rsa", "-b", "2048"]),
        ("rsa3072", &["-t", "rsa", "-b", "3072"]),
    ];
    for (name, kind) in kinds {
        world.book.register(&keygen(&world.path(name), kind), name);
        world.write_config(name);
        let done = world.ssh(&["-v", "dev@gw", "true"]).await.ok();
        if name.starts_with("rsa") {
            assert!(done.stderr.contains("rsa-sha2-512"), "{}", done.stderr);
        }
    }
    // Held by an agent, which must be asked for the better signature.
    let agent = Agent::start(world.path("agent.sock"), &[world.path("rsa3072"), world.path("p384")]).await;
    for (key, more) in [("rsa3072", "x"), ("rsa3072", "PubkeyAcceptedAlgorithms=rsa-sha2-256"), ("p384", "x")] {
        world.write_config(&format!("{key}.pub"));
        let socket = format!("IdentityAgent={}", agent.socket.display());
        let more = if more == "x" { "LogLevel=INFO" } else { more };
        world.ssh(&["-o", &socket, "-o", more, "dev@gw", "true"]).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weak_and_unknown_keys_do_not() {
    let world = World::new().await;
    world.book.register(&keygen(&world.path("rsa"), &["-t", "rsa", "-b", "2048"]), "alice");
    world.book.register(&keygen(&world.path("short"), &["-t", "rsa", "-b", "1024"]), "alice");
    keygen(&world.path("stranger"), &["-t", "ed25519"]);
    for (key, option) in
        [("rsa", "PubkeyAcceptedAlgorithms=ssh-rsa"), ("short", "LogLevel=INFO"), ("stranger", "LogLevel=INFO")]
    {
        world.write_config(key);
        let done = world.ssh(&["-o", option, "dev@gw", "true"]).await;
        assert_eq!(done.code, Some(255), "{key}: {done:?}");
        assert!(done.stderr.contains("Permission denied (publickey)"), "{key}: {done:?}");
    }
    // Passwords and the like are not even offered.
    world.write_config("stranger");
    let done = world.ssh(&["-v", "-o", "BatchMode=no", "-o", "NumberOfPasswordPrompts=3", "dev@gw", "true"]).await;
    assert!(done.stderr.contains("Authentications that can continue: publickey\r\n"), "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_offer_of_signatures_names_all_and_no_sha1() {
    let world = World::new().await;
    let done = world.ssh(&["-vvv", "dev@gw", "true"]).await.ok();
    let line = done.stderr.lines().find(|line| line.contains("server-sig-algs=")).expect("no server-sig-algs");
    for name in [
        "<ssh-ed25519,",
        "sk-ssh-ed25519@openssh.com",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ecdsa-sha2-nistp256@openssh.com",
        "rsa-sha2-512",
        "rsa-sha2-256",
    ] {
        assert!(line.contains(name), "no {name} in {line}");
    }
    assert!(!line.contains("ssh-rsa"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_full_of_keys_finds_the_right_one_or_hears_why_not() {
    let world = World::new().await;
    let keys: Vec<_> = (0..40)
        .map(|number| {
            let key = world.path(&format!("k{number}"));
            keygen(&key, &["-t", "ed25519"]);
            key
        })
        .collect();
    let mut some = keys[..12].to_vec();
    some.push(world.path("member"));
    let few = Agent::start(world.path("few.sock"), &some).await;
    let many = Agent::start(world.path("many.sock"), &keys).await;
    let with = async |agent: &Agent| {
        let socket = format!("IdentityAgent={}", agent.socket.display());
        let options = ["-o", "IdentitiesOnly=no", "-o", "IdentityFile=none", "-o", &socket, "dev@gw", "echo in"];
        let mut client = world.client("ssh", &[]);
        client.args(options);
        run(client, b"").await
    };
    // The configured key must not help: it is not among the agent's keys here.
    world.write_config("none");
    assert_eq!(with(&few).await.ok().out(), "in\n");
    let done = with(&many).await;
    assert_eq!(done.code, Some(255));
    assert!(done.stderr.contains("gvm: 30 keys were offered"), "{done:?}");
    assert!(done.stderr.contains("IdentitiesOnly=yes"), "{done:?}");
}

/// A client that trusts whom it reaches.
struct Trusting;

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

async fn raw(world: &World) -> client::Handle<Trusting> {
    client::connect(Arc::new(client::Config::default()), world.address, Trusting).await.unwrap()
}

/// A security key in software: it signs what a token would sign, with the touch confirmed.
struct Token {
    key: PrivateKey,
}

impl Token {
    fn public(&self) -> PublicKey {
        let data = match self.key.public_key().key_data() {
            KeyData::Ed25519(point) => KeyData::SkEd25519(SkEd25519::new(*point, "ssh:")),
            KeyData::Ecdsa(point) => {
                let point = russh::keys::ssh_key::sec1::EncodedPoint::from_bytes(point.as_sec1_bytes()).unwrap();
                KeyData::SkEcdsaSha2NistP256(SkEcdsaSha2NistP256::new(point, "ssh:"))
            }
            other => panic!("{other:?}"),
        };
        PublicKey::new(data, "")
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend_from_slice(bytes);
}

impl russh::Signer for Token {
    type Error = russh::SendError;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        _hash: Option<HashAlg>,
        mut to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, russh::SendError> {
        let trailer = [1, 0, 0, 0, 7];
        let mut message = Sha256::digest(b"ssh:").to_vec();
        message.extend_from_slice(&trailer);
        message.extend_from_slice(&Sha256::digest(&to_sign));
        let signature = self.key.try_sign(&message).unwrap();
        let AgentIdentity::PublicKey { key, .. } = key else { panic!("a certificate") };
        let mut blob = Vec::new();
        string(&mut blob, key.algorithm().as_str().as_bytes());
        string(&mut blob, signature.as_bytes());
        blob.extend_from_slice(&trailer);
        string(&mut to_sign, &blob);
        Ok(to_sign)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_kinds_of_security_keys_open_the_door() {
    let world = World::new().await;
    for kind in [Algorithm::Ed25519, Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 }] {
        let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), kind).unwrap();
        let mut token = Token { key };
        let public = token.public();
        assert!(public.algorithm().as_str().starts_with("sk-"));
        let file = world.path("token.pub");
        std::fs::write(&file, public.to_openssh().unwrap()).unwrap();
        world.book.register(&file, "alice");
        let mut session = raw(&world).await;
        let done = session.authenticate_publickey_with("dev", public.clone(), None, &mut token).await.unwrap();
        assert!(matches!(done, AuthResult::Success), "{}", public.algorithm());
        // The same public key with another token behind it.
        let mut forged =
            Token { key: PrivateKey::random(&mut russh::keys::key::safe_rng(), token.key.algorithm()).unwrap() };
        let mut session = raw(&world).await;
        let done = session.authenticate_publickey_with("dev", public, None, &mut forged).await.unwrap();
        assert!(matches!(done, AuthResult::Failure { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_end_the_connection_and_unknown_requests_are_answered() {
    let world = World::new().await;
    let mut session = raw(&world).await;
    let mut tries = 0;
    while let Ok(AuthResult::Failure { .. }) = session.authenticate_password("dev", "guess").await {
        tries += 1;
        if session.is_closed() || tries > 10 {
            break;
        }
    }
    assert!(tries <= 5, "{tries}");

    let mut session = raw(&world).await;
    let key = PrivateKey::from_openssh(std::fs::read_to_string(world.path("member")).unwrap()).unwrap();
    let key = russh::keys::PrivateKeyWithHashAlg::new(Arc::new(key), None);
    assert!(matches!(session.authenticate_publickey("dev", key).await, Ok(AuthResult::Success)));
    let answer = session.send_global_request("x-unknown@example.org", b"", true);
    let answer = tokio::time::timeout(std::time::Duration::from_secs(5), answer).await.expect("no answer");
    assert!(matches!(answer, Err(russh::Error::RequestDenied)), "{answer:?}");
}
