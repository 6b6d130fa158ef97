//! Destinations of credentials, headers and passwords, and places where they must not appear.

mod hosts;
mod redirects;
mod secrets;
/// A secret that must appear nowhere, except at the server that it is for.
const SECRET: &str = "nobody-may-see-this";
