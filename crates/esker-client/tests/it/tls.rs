//! Encrypted connections.

use crate::harness::{Alone, PATIENCE, address_of, alone_with, impatient};
use esker_client::{Attributes, Client, Condition, Fate, Options, Tls};

/// A server with a certificate for `localhost` of its own, and the certificate.
fn encrypted() -> (Alone, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = esker_server::Tls::from_pem(chain.as_bytes(), key.as_bytes()).expect("valid");
    (alone_with(|config| config.tls = Some(tls)), chain)
}

fn client(alone: &Alone, tls: Option<Tls>) -> Client {
    let options = Options { tls, request_timeout: PATIENCE, ..impatient() };
    Client::new(address_of(alone.server.address()), options)
}

fn trusting(chain: &str) -> Tls {
    let tls = Tls::from_pem(chain.as_bytes()).expect("valid");
    tls.with_name("localhost").expect("a name")
}

#[test]
fn many_requests_small_and_large_pass_through_tls() {
    let (alone, chain) = encrypted();
    let client = client(&alone, Some(trusting(&chain)));
    let large = vec![7; 1 << 20];
    client.put(b"large", &large).expect("put");
    let puts: Vec<_> = (0..1000_u32)
        .map(|n| {
            client.submit_put(&n.to_be_bytes(), b"v", Attributes::default(), Condition::Always)
        })
        .collect::<Result<_, _>>()
        .expect("submitted");
    for put in puts {
        put.wait().expect("put");
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..50_u32 {
                    assert_eq!(&*client.get(&n.to_be_bytes()).expect("get").expect("there"), b"v");
                    assert!(*client.get(b"large").expect("get").expect("there") == large[..]);
                }
            });
        }
    });
    assert_eq!(alone.server.store.stats().items, 1001);
}

#[test]
fn a_server_that_is_not_trusted_gets_nothing() {
    let (alone, chain) = encrypted();
    let (_other, others) = encrypted();
    let unnamed = Tls::from_pem(chain.as_bytes()).expect("valid");
    for tls in [Some(trusting(&others)), Some(unnamed), None] {
        let error = client(&alone, tls).put(b"k", b"v").expect_err("no trust");
        assert_eq!(error.fate(), Fate::NotSent, "{error}");
    }
    assert_eq!(alone.server.store.stats().items, 0);
    for text in ["", "nothing", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"] {
        assert!(Tls::from_pem(text.as_bytes()).is_err(), "{text}");
    }
}
