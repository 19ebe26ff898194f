//! What serves a device beside NBD, started and stopped in one place. Each front end has its own folder, and reaches the
//! device through its [`Server`] only.

use std::sync::Arc;

use crate::control;
use crate::error::ServeError;
use crate::nvme_tcp::{self, Subsystem};
use crate::parameters::Parameters;
use crate::server::Server;
use crate::vhost_user::{self, VhostUser};

/// The front ends that run.
pub struct FrontEnds {
    nvme_tcp: Option<Arc<Subsystem>>,
    vhost_user: Option<Arc<VhostUser>>,
}

impl FrontEnds {
    /// Starts those that the parameters ask for, over a server that has been started.
    pub fn start(server: &'static Server, parameters: &Parameters) -> Result<Self, ServeError> {
        let nvme_tcp =
            nvme_tcp::start(server, parameters.nvme_tcp_fd, &parameters.nvme_hosts, parameters.nvme_permissions)?;
        let vhost_user = vhost_user::start(server, &parameters.vhost_user_fds)?;
        // Last: it reports where the others can be reached.
        control::start(server, parameters.control_fd)?;
        Ok(Self { nvme_tcp, vhost_user })
    }

    /// Ends every connection once its requests in work are answered. Before the server is stopped.
    pub fn stop(&self) {
        if let Some(subsystem) = &self.nvme_tcp {
            nvme_tcp::stop(subsystem);
        }
        if let Some(vhost_user) = &self.vhost_user {
            vhost_user.stop();
        }
    }
}
