//! The handshake: options of the client and replies, until it has chosen an export or disconnects.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ftl_core::convert::exact;

use crate::config::Medium;
use crate::namespace::Namespace;
use crate::nbd::Front;
use crate::nbd::protocol::{
    ALLOCATION, ALLOCATION_ID, FIXED_NEWSTYLE, Fields, GREETING_MAGIC, MAX_PAYLOAD_BYTES, NO_ZEROES, OPTION_MAGIC,
    info, option, option_reply, reply, transmission,
};

/// Time without data after which a client that has not chosen an export is disconnected.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest data of an option. Names have at most 4096 bytes ("Conventions"), queries are short.
const MAX_OPTION_BYTES: u32 = 16 << 10;
/// Most options of one client.
const MAX_OPTIONS: usize = 1024;

/// Result of the negotiation.
pub struct Agreed {
    /// The stream to continue with; a new one with TLS.
    pub stream: Arc<UnixStream>,
    /// The export.
    pub namespace: Arc<Namespace>,
    /// "Structured reply chunk message".
    pub structured: bool,
    /// `base:allocation` may be queried.
    pub allocation: bool,
}

/// Negotiates with a client until it has chosen an export. None where it leaves, or breaks the protocol. With
/// `only`, that namespace is all it may see.
pub fn negotiate(front: &Front, stream: Arc<UnixStream>, only: Option<&str>) -> io::Result<Option<Agreed>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut session =
        Session { front, stream, only, no_zeroes: false, encrypted: false, structured: false, allocation: None };
    let agreed = session.run()?;
    if let Some(agreed) = &agreed {
        agreed.stream.set_read_timeout(None)?;
        agreed.stream.set_write_timeout(None)?;
    }
    Ok(agreed)
}

/// What follows an option.
enum Next {
    Option,
    Export(Arc<Namespace>),
    Leave,
}

struct Session<'a> {
    front: &'a Front,
    stream: Arc<UnixStream>,
    only: Option<&'a str>,
    no_zeroes: bool,
    encrypted: bool,
    structured: bool,
    /// Name of the export for which `base:allocation` was requested.
    allocation: Option<Vec<u8>>,
}

impl Session<'_> {
    fn run(&mut self) -> io::Result<Option<Agreed>> {
        let greeting = [
            &GREETING_MAGIC.to_be_bytes()[..],
            &OPTION_MAGIC.to_be_bytes(),
            &(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes(),
        ];
        self.send(&greeting.concat())?;
        let flags = u32::from_be_bytes(self.receive()?);
        // "Client flags": FIXED_NEWSTYLE is no more than recommended; a flag that was not offered ends the connection.
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Ok(None);
        }
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        for _ in 0..MAX_OPTIONS {
            let head: [u8; 16] = self.receive()?;
            let mut fields = Fields(&head);
            let (magic, kind, length) = (fields.u64(), fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
            // Larger than anything that could be skipped in good time.
            if magic != Some(OPTION_MAGIC) || length > MAX_PAYLOAD_BYTES {
                return Ok(None);
            }
            if length > MAX_OPTION_BYTES {
                let skipped = io::copy(&mut (&*self.stream).take(u64::from(length)), &mut io::sink())?;
                if skipped < u64::from(length) || kind == option::EXPORT_NAME {
                    return Ok(None);
                }
                self.reply(kind, reply::ERR_TOO_BIG, &[])?;
                continue;
            }
            let mut data = vec![0; length as usize];
            (&*self.stream).read_exact(&mut data)?;
            match self.option(kind, &data)? {
                Next::Option => {}
                Next::Leave => return Ok(None),
                Next::Export(namespace) => {
                    let asked = |name: &Vec<u8>| self.find(name).is_some_and(|found| found.serial == namespace.serial);
                    let allocation = self.allocation.as_ref().is_some_and(asked);
                    return Ok(Some(Agreed {
                        stream: Arc::clone(&self.stream),
                        namespace,
                        structured: self.structured,
                        allocation,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Executes an option ("Option types").
    fn option(&mut self, kind: u32, data: &[u8]) -> io::Result<Next> {
        let must_encrypt = self.front.tls.is_some() && !self.encrypted;
        match kind {
            option::ABORT => {
                // The client may have disconnected already.
                let _acknowledged = self.reply(kind, reply::ACK, &[]);
                return Ok(Next::Leave);
            }
            // There is no reply for a reason.
            option::EXPORT_NAME if must_encrypt => return Ok(Next::Leave),
            option::EXPORT_NAME => return self.export_name(data),
            option::STARTTLS => return self.start_tls(data),
            // "FORCEDTLS mode".
            _ if must_encrypt => self.reply(kind, reply::ERR_TLS_REQD, &[])?,
            option::LIST if data.is_empty() => {
                for namespace in self.permitted() {
                    let name = namespace.name.as_bytes();
                    let entry = [&exact::<u32>(name.len()).to_be_bytes(), name].concat();
                    self.reply(kind, reply::SERVER, &entry)?;
                }
                self.reply(kind, reply::ACK, &[])?;
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(kind, reply::ACK, &[])?;
            }
            option::LIST | option::STRUCTURED_REPLY => self.reply(kind, reply::ERR_INVALID, &[])?,
            option::INFO | option::GO => return self.info(kind, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(kind, data)?,
            _ => self.reply(kind, reply::ERR_UNSUP, &[])?,
        }
        Ok(Next::Option)
    }

    fn export_name(&mut self, name: &[u8]) -> io::Result<Next> {
        let Some(namespace) = self.find(name) else { return Ok(Next::Leave) };
        let mut answer = [&namespace.size_bytes().to_be_bytes()[..], &self.flags().to_be_bytes()].concat();
        if !self.no_zeroes {
            answer.resize(answer.len() + 124, 0);
        }
        self.send(&answer)?;
        Ok(Next::Export(namespace))
    }

    /// "TLS support": what was agreed on before is forgotten with it.
    fn start_tls(&mut self, data: &[u8]) -> io::Result<Next> {
        let Some(certificates) = &self.front.tls else {
            self.reply(option::STARTTLS, reply::ERR_UNSUP, &[])?;
            return Ok(Next::Option);
        };
        if self.encrypted || !data.is_empty() {
            self.reply(option::STARTTLS, reply::ERR_INVALID, &[])?;
            return Ok(Next::Option);
        }
        self.reply(option::STARTTLS, reply::ACK, &[])?;
        let plain = certificates.accept(&self.stream)?;
        plain.set_read_timeout(Some(TIMEOUT))?;
        plain.set_write_timeout(Some(TIMEOUT))?;
        self.stream = Arc::new(plain);
        (self.encrypted, self.structured, self.allocation) = (true, false, None);
        Ok(Next::Option)
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`: name of the export, and the information that the client requests.
    fn info(&mut self, kind: u32, data: &[u8]) -> io::Result<Next> {
        let mut fields = Fields(data);
        let parsed = (|| {
            let name = fields.string()?;
            let count = usize::from(fields.u16()?);
            let wanted = fields.bytes(2 * count)?.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
            fields.0.is_empty().then(|| (name, wanted.collect::<Vec<_>>()))
        })();
        let Some((name, wanted)) = parsed else {
            self.reply(kind, reply::ERR_INVALID, &[])?;
            return Ok(Next::Option);
        };
        let Some(namespace) = self.find(name) else {
            self.reply(kind, reply::ERR_UNKNOWN, &[])?;
            return Ok(Next::Option);
        };
        let size = [&namespace.size_bytes().to_be_bytes()[..], &self.flags().to_be_bytes()].concat();
        self.inform(kind, info::EXPORT, &size)?;
        for wanted in [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE].into_iter().filter(|each| wanted.contains(each))
        {
            let device = &self.front.server.config;
            let about = match wanted {
                info::NAME => namespace.name.as_bytes().to_vec(),
                info::DESCRIPTION => {
                    format!("slo-ctl: EMULATED device {}, namespace {}", device.name, namespace.name).into_bytes()
                }
                _ => {
                    // "Size constraints": any byte can be addressed; whole pages are best.
                    let preferred = exact::<u32>(device.granule_bytes()).clamp(4096, MAX_PAYLOAD_BYTES);
                    [1, preferred, MAX_PAYLOAD_BYTES].map(u32::to_be_bytes).concat()
                }
            };
            self.inform(kind, wanted, &about)?;
        }
        self.reply(kind, reply::ACK, &[])?;
        Ok(if kind == option::GO { Next::Export(namespace) } else { Next::Option })
    }

    fn inform(&self, kind: u32, what: u16, about: &[u8]) -> io::Result<()> {
        self.reply(kind, reply::INFO, &[&what.to_be_bytes(), about].concat())
    }

    /// "Metadata querying": there is `base:allocation`, which `base:` lists as well.
    fn meta_context(&mut self, kind: u32, data: &[u8]) -> io::Result<()> {
        let sets = kind == option::SET_META_CONTEXT;
        if sets {
            self.allocation = None;
        }
        let mut fields = Fields(data);
        let parsed = (|| {
            let (name, count) = (fields.string()?, fields.u32()?);
            // Each takes four bytes at least, so that there are no more than the data has room for.
            let queries = (0..count).map(|_| fields.string()).collect::<Option<Vec<_>>>()?;
            fields.0.is_empty().then_some((name, queries))
        })();
        let Some((name, queries)) = parsed.filter(|_| self.structured || !sets) else {
            return self.reply(kind, reply::ERR_INVALID, &[]);
        };
        if self.find(name).is_none() {
            return self.reply(kind, reply::ERR_UNKNOWN, &[]);
        }
        let lists = !sets && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if lists || queries.contains(&ALLOCATION) {
            let id = if sets { ALLOCATION_ID } else { 0 };
            self.reply(kind, reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION].concat())?;
            if sets {
                self.allocation = Some(name.to_vec());
            }
        }
        self.reply(kind, reply::ACK, &[])
    }

    /// Exports that this client may see.
    fn permitted(&self) -> Vec<Arc<Namespace>> {
        let namespaces = self.front.server.namespaces();
        namespaces.iter().filter(|n| self.only.is_none_or(|only| only == n.name)).map(Arc::clone).collect()
    }

    /// The export of that name; without a name the only one, as among several there is no telling which is meant.
    fn find(&self, name: &[u8]) -> Option<Arc<Namespace>> {
        let permitted = self.permitted();
        match (name, &permitted[..]) {
            ([], [only]) => Some(Arc::clone(only)),
            _ => permitted.into_iter().find(|n| n.name.as_bytes() == name),
        }
    }

    /// "Transmission flags".
    fn flags(&self) -> u16 {
        use transmission::{
            CAN_MULTI_CONN, HAS_FLAGS, ROTATIONAL, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH, SEND_FUA, SEND_TRIM,
            SEND_WRITE_ZEROES,
        };
        let rotates = matches!(self.front.server.config.medium, Medium::Disks(..));
        HAS_FLAGS
            | SEND_FLUSH
            | SEND_FUA
            | SEND_TRIM
            | SEND_WRITE_ZEROES
            | SEND_FAST_ZERO
            | CAN_MULTI_CONN
            | if rotates { ROTATIONAL } else { 0 }
            | if self.structured { SEND_DF } else { 0 }
    }

    fn reply(&self, kind: u32, reply: u32, data: &[u8]) -> io::Result<()> {
        self.send(&option_reply(kind, reply, data))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes)
    }

    fn receive<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        (&*self.stream).read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
