//! The sites of striped devices: where their own durability and integrity are decided.

esker_base::sites! {
    /// Reads the headers of members.
    pub MEMBER_READ: Read = "stripe.member.read";
    /// Writes the headers of members.
    pub MEMBER_WRITE: Write = "stripe.member.write";
    /// Makes the headers of all members durable before any of them says more.
    pub MEMBER_FLUSH: Flush = "stripe.member.flush";
    /// A flush covers every member that was written since its last one.
    pub FLUSH_COVERS: Compare = "stripe.flush.covers";
    /// Members of one set are told from others, and put in their order.
    pub MEMBER_IDENTITY: Compare = "stripe.member.identity";
}
