#pragma once
// A change of more rows than etcd takes at a time, as one value. Conditions are no part of it.
#include <string>
#include <string_view>

#include "common/status.h"
#include "mp_controller/etcd/etcd_client.h"

namespace ems::controller {

std::string ToJournal(const EtcdTransaction& change);
// Errors: kDataLoss
Result<EtcdTransaction> FromJournal(std::string_view text);

}  // namespace ems::controller
