//! Downloads over TLS from a server whose certificate only an authority of the user's own has signed, as behind the proxy of
//! a company.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use dipaco_tests::fixtures::fixture;
use dipaco_tests::process::{Output, command, output};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

/// A certificate authority: its certificate as PEM, and its key.
fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
}

/// A server on loopback that answers every request with this content. The thread ends with the test's process.
fn serve(authority: &Issuer<'static, KeyPair>, content: Vec<u8>) -> String {
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, authority).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![leaf], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/en", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let (mut tcp, mut tls) = (tcp.unwrap(), ServerConnection::new(config.clone()).unwrap());
            let mut stream = Stream::new(&mut tls, &mut tcp);
            let mut head = Vec::new();
            let mut byte = [0];
            // A client that distrusts the server hangs up.
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
            let _ = stream.write_all(&content).and_then(|()| stream.flush());
        }
    });
    url
}

/// Downloads one file with this file of trusted authorities.
fn fetch(url: &str, trusted: &Path, out: &Path) -> Output {
    let words = ["fetch-c4", "--retries", "0", "--url", url, "--out", out.to_str().unwrap()];
    let mut fetch = command(words);
    for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
        fetch.env_remove(proxy).env_remove(proxy.to_uppercase());
    }
    fetch.env_remove("SSL_CERT_DIR").env("SSL_CERT_FILE", trusted);
    output(fetch)
}

#[test]
fn a_certificate_of_the_users_own_authority_is_trusted_and_another_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let pem = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let ((own_pem, own), (other_pem, _)) = (authority(), authority());
    let (own_pem, other_pem) = (pem("own.pem", &own_pem), pem("other.pem", &other_pem));
    let content = fs::read(fixture("validation.txt.gz")).unwrap();
    let url = serve(&own, content.clone());
    let out = folder.path().join("c4");
    let _ = fetch(&url, &other_pem, &out)
        .failed(1, &["does not trust the server's certificate", "SSL_CERT_FILE"]);
    let _ = fetch(&url, &own_pem, &out).succeeded();
    let files: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.iter().any(|file| fs::read(file).unwrap() == content), "{files:?}");
}
