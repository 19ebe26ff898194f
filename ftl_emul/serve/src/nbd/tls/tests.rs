//! A client that has a TLS session, and the thread between it and the connection.

use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::*;

/// Signed by itself; for tests only, so that its key is no secret.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBiTCCAS6gAwIBAgIUeIi8DaRzD/2sv1gvIiuUyKtQYPowCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjkwMTQwMDZaGA8yMTI2MTEwNTAxNDAw
NlowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNHj
+vWzmd3Ib3hyDfQDUGtM9vlEXtfeEMTtnaOpO3YzoGj2mi1C37tdd3/oDII8IEc3
J79294tBxbjKG7NjVV6jZjBkMB0GA1UdDgQWBBRWbxZOHpt7/EYrJMTPpv2i7JCe
nzAfBgNVHSMEGDAWgBRWbxZOHpt7/EYrJMTPpv2i7JCenzAMBgNVHRMBAf8EAjAA
MBQGA1UdEQQNMAuCCWxvY2FsaG9zdDAKBggqhkjOPQQDAgNJADBGAiEAzMCv2q15
D4pmRuoJmbfPrWKF7F8qxgj9BnZcRtYin9wCIQCyFr7G7ApZzpnLIhp8PoQSU7fR
RGkhUOag9T0ojgrtfQ==
-----END CERTIFICATE-----
";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg4WrVHVpbuJBwwCD+
Mrwm+MG4oVpsxvgoyV82aKha/OehRANCAATR4/r1s5ndyG94cg30A1BrTPb5RF7X
3hDE7Z2jqTt2M6Bo9potQt+7XXd/6AyCPCBHNye/dveLQcW4yhuzY1Ve
-----END PRIVATE KEY-----
";

/// CPU time of this thread, in clock ticks (`utime` and `stime` of `proc_pid_stat(5)`).
fn cpu_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn no_cpu_time_is_used_after_a_connection_that_its_client_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(FILES[1]), CERTIFICATE).unwrap();
    fs::write(folder.path().join(FILES[2]), KEY).unwrap();
    let certificates = Certificates::read(folder.path(), false).unwrap();
    let (client, server) = UnixStream::pair().unwrap();
    let connecting = thread::spawn(move || {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut &client).unwrap();
        }
        client
    });
    let (relay, mut plain) = handshake(&certificates.configuration(), &Arc::new(server)).unwrap();
    let client = connecting.join().unwrap();
    let relaying = thread::spawn(|| {
        let before = cpu_ticks();
        let _broken_off = relay.run();
        cpu_ticks() - before
    });
    plain.set_nonblocking(true).unwrap();
    // As much as fits on the way to the client.
    for _ in 0..20 {
        while plain.write(&[0; 4096]).is_ok() {}
        thread::sleep(Duration::from_millis(10));
    }
    drop(plain);
    thread::sleep(Duration::from_secs(1));
    drop(client);
    // A hundred ticks are a second.
    assert!(relaying.join().unwrap() < 30);
}
