//! shim
pub struct Server;
pub struct ServerConfig;
