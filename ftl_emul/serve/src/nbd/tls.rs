//! TLS: a thread between the client and the connection, which is not aware of it.

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::error::ServeError;
use crate::occasional_log::OccasionalLog;
use crate::threads::{self, lock};

/// Bytes that are decrypted or encrypted at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Files in the folder of the certificates: CA, certificate and key of the server.
const FILES: [&str; 3] = ["ca-cert.pem", "server-cert.pem", "server-key.pem"];

/// Certificates for new clients, which are read again when their files change.
pub struct Certificates {
    folder: PathBuf,
    verify_peer: bool,
    read: Mutex<(Identity, Arc<ServerConfig>)>,
    unusable: OccasionalLog,
    refused: OccasionalLog,
}

/// Inode, time of the change and size of each file.
type Identity = [Option<(u64, i64, i64, u64)>; 3];

impl Certificates {
    /// Certificate and key of the server are in `folder`; with `verify_peer`, clients need a certificate signed by the CA
    /// there.
    pub fn read(folder: &Path, verify_peer: bool) -> Result<Self, ServeError> {
        let read = Mutex::new((identity(folder), configuration(folder, verify_peer)?));
        let (unusable, refused) = Default::default();
        Ok(Self { folder: folder.to_owned(), verify_peer, read, unusable, refused })
    }

    /// The configuration of the present files, or the last that could be used, as while new files are written.
    fn configuration(&self) -> Arc<ServerConfig> {
        let mut read = lock(&self.read);
        let identity = identity(&self.folder);
        if identity != read.0 {
            match configuration(&self.folder, self.verify_peer) {
                Ok(new) => *read = (identity, new),
                Err(e) => self.unusable.say(|| format!("{e}; the certificates before remain in use")),
            }
        }
        Arc::clone(&read.1)
    }

    /// Does the handshake; then a separate thread forwards data between the client and the returned stream.
    pub fn accept(&self, client: &Arc<UnixStream>) -> io::Result<UnixStream> {
        let (relay, plain) = handshake(&self.configuration(), client).inspect_err(|e| {
            if e.kind() == ErrorKind::InvalidData {
                self.refused.say(|| format!("TLS: a client of NBD cannot connect: {e}"));
            }
        })?;
        threads::builder("slo-ctl nbd tls")?.spawn(move || {
            // A client that disconnects is not logged.
            let _broken_off = relay.run();
        })?;
        Ok(plain)
    }
}

fn identity(folder: &Path) -> Identity {
    FILES.map(|name| {
        let found = fs::metadata(folder.join(name)).ok()?;
        Some((found.ino(), found.ctime(), found.ctime_nsec(), found.len()))
    })
}

fn configuration(folder: &Path, verify_peer: bool) -> Result<Arc<ServerConfig>, ServeError> {
    let [ca, own, key] = FILES.map(|name| folder.join(name));
    let wrong = |path: &Path, why: &dyn std::fmt::Display| ServeError::File(format!("TLS: {}: {why}", path.display()));
    let certificates = |path: &Path| {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match found {
            Ok(found) if found.is_empty() => Err(wrong(path, &"no certificate in it")),
            found => found.map_err(|e| wrong(path, &e)),
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| ServeError::File(format!("TLS: {e}")))?;
    let builder = if verify_peer {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&ca)? {
            roots.add(certificate).map_err(|e| wrong(&ca, &e))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        builder.with_client_cert_verifier(verifier.map_err(|e| wrong(&ca, &e))?)
    } else {
        builder.with_no_client_auth()
    };
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|e| wrong(&key, &e))?;
    let configuration = builder.with_single_cert(certificates(&own)?, private).map_err(|e| wrong(&own, &e))?;
    Ok(Arc::new(configuration))
}

/// Returns what is to run between the client and the other stream.
fn handshake(configuration: &Arc<ServerConfig>, client: &Arc<UnixStream>) -> io::Result<(Relay, UnixStream)> {
    let mut session = ServerConnection::new(Arc::clone(configuration)).map_err(io::Error::other)?;
    session.set_buffer_limit(Some(BUFFER_BYTES));
    while session.is_handshaking() {
        session.complete_io(&mut &**client)?;
    }
    let (plain, inner) = UnixStream::pair()?;
    inner.set_nonblocking(true)?;
    client.set_nonblocking(true)?;
    let mut relay = Relay { session, client: Arc::clone(client), inner, decrypted: Vec::new() };
    // Data that arrived together with the end of the handshake.
    relay.decrypt()?;
    Ok((relay, plain))
}

struct Relay {
    session: ServerConnection,
    client: Arc<UnixStream>,
    /// The other end of the connection's socket.
    inner: UnixStream,
    /// Received from the client, and not passed on yet.
    decrypted: Vec<u8>,
}

impl Relay {
    fn run(mut self) -> io::Result<()> {
        let (mut client_ended, mut inner_ended) = (false, false);
        loop {
            let mut of_client = PollFlags::empty();
            of_client.set(PollFlags::IN, !client_ended && self.decrypted.is_empty());
            of_client.set(PollFlags::OUT, self.session.wants_write());
            let mut of_inner = PollFlags::empty();
            of_inner.set(PollFlags::IN, !inner_ended && !self.session.wants_write());
            of_inner.set(PollFlags::OUT, !self.decrypted.is_empty());
            let mut polled = vec![PollFd::new(&*self.client, of_client)];
            // That it has ended would be reported at once, even where the client does not take what is left of it.
            if !of_inner.is_empty() {
                polled.push(PollFd::new(&self.inner, of_inner));
            }
            match poll(&mut polled, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let client_is = polled[0].revents();
            drop(polled);
            if client_is.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            if !client_ended && self.decrypted.is_empty() {
                client_ended = self.receive()?;
            }
            self.pass_on(client_ended)?;
            if !inner_ended && !self.session.wants_write() {
                inner_ended = self.take_over()?;
            }
            while self.session.wants_write() {
                match self.session.write_tls(&mut &*self.client) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                }
            }
            if inner_ended && !self.session.wants_write() {
                return self.client.shutdown(Shutdown::Both);
            }
        }
    }

    /// Processes data of the client; true at its end.
    fn receive(&mut self) -> io::Result<bool> {
        let mut ended = match self.session.read_tls(&mut &*self.client) {
            Ok(read) => read == 0,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        };
        ended |= self.decrypt()?;
        Ok(ended)
    }

    fn decrypt(&mut self) -> io::Result<bool> {
        let state = self.session.process_new_packets().map_err(io::Error::other)?;
        self.decrypted.resize(state.plaintext_bytes_to_read(), 0);
        self.session.reader().read_exact(&mut self.decrypted)?;
        Ok(state.peer_has_closed())
    }

    /// Passes on the decrypted data, and then the end.
    fn pass_on(&mut self, client_ended: bool) -> io::Result<()> {
        while !self.decrypted.is_empty() {
            match self.inner.write(&self.decrypted) {
                Ok(written) => drop(self.decrypted.drain(..written)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        if client_ended {
            // The connection may have ended before.
            let _ended = self.inner.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Encrypts data from the connection; true at its end.
    fn take_over(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER_BYTES / 2];
        match self.inner.read(&mut buffer) {
            Ok(0) => {
                self.session.send_close_notify();
                Ok(true)
            }
            Ok(read) => self.session.writer().write_all(&buffer[..read]).map(|()| false),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}
