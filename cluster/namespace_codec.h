#pragma once
// Namespaces as the wire and the controller's store write them ⇄ as the program holds them.
#include <memory>

#include "cluster/view_cache.h"
#include "common/status.h"

namespace ems::v1 {
class Namespace;
class NamespacePolicy;
class NamespaceTable;
}  // namespace ems::v1

namespace ems {

// At most this many namespaces live in one cluster; a longer table is refused on both sides.
inline constexpr int kNamespacesMax = 10'000;

void ToProto(const NamespaceInfo& info, v1::Namespace* out);
void ToProto(const NamespaceInfo& info, v1::NamespacePolicy* out);
void ToProto(const NamespaceTable& table, v1::NamespaceTable* out);

// Id, generation, name and policy as written; unknown enum values are errors.
// Errors: kInvalidArgument  unknown durability or checksum policy
Result<NamespaceInfo> FromProto(const v1::Namespace& in);
Status FromProto(const v1::NamespacePolicy& in, NamespaceInfo* out);
// Errors: kInvalidArgument  as above, id 0, an id or name twice, more than kNamespacesMax
Result<std::shared_ptr<const NamespaceTable>> FromProto(const v1::NamespaceTable& in);

}  // namespace ems
