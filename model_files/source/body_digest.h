#pragma once
// Checks a server's answer against the checksums that the server gives of it. Most give none of a
// range; those that do protect bytes that TLS does not.
#include <optional>
#include <string>

#include "common/bytes.h"
#include "model_files/source/http_transfer.h"

namespace ems::model {

// Which field of `head` the bytes contradict ("Content-Digest", "Content-MD5", "Repr-Digest"), or
// nothing: they agree, or it says nothing that is understood (SHA-256 and MD5 are).
// `body`: all of the answer's body. `whole_file`: it is the whole file; of a part, only
// Content-Digest counts: servers do not agree what Content-MD5 is of.
// Cost: a pass over the bytes for each field that is there.
std::optional<std::string> ContradictedField(const HttpHead& head, ConstBytes body,
                                             bool whole_file);

// Whether there is anything that the bytes could contradict.
bool HasChecksum(const HttpHead& head, bool whole_file);

// Whether `head` gives a checksum of its body alone.
bool HasBodyDigest(const HttpHead& head);

// The MD5 that the entity tag of an object in an S3-compatible store may be: 32 hexadecimal digits
// in quotes. Nothing for objects that were put in parts or are encrypted: their tag is another sum.
// Some stores make other tags of 32 digits, too: that bytes have another MD5 proves nothing alone.
std::optional<std::string> Md5OfTag(std::string_view tag, const HttpHead& head);

}  // namespace ems::model
