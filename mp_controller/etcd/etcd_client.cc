#include "mp_controller/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <optional>

#include "cluster/channel_list.h"
#include "cluster/unary_calls.h"
#include "common/bytes.h"
#include "common/parse_number.h"
#include "proto/etcd.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems::controller {
namespace {

namespace pb = etcdserverpb;

constexpr uint32_t kMinorLeast = 3;  // of version 3

// etcd's own words for a call without a user where users are asked for.
bool WantsUser(const Status& status) {
  return status.code() == StatusCode::kUnauthenticated ||
         status.code() == StatusCode::kPermissionDenied ||
         Message(status).find("user name is empty") != std::string_view::npos;
}

Status Explain(const Status& status, const std::string& endpoint) {
  if (status.ok()) return status;
  if (WantsUser(status)) {
    return Error(StatusCode::kUnauthenticated,
                 "etcd {} wants a user ({}), which is not supported: turn its authentication off, "
                 "and let the controllers alone reach it",
                 endpoint, Printable(Message(status)));
  }
  if (status.code() == StatusCode::kUnimplemented) {
    return Error(StatusCode::kUnimplemented,
                 "{} is no etcd: it does not know the call ({}). etcd.endpoints are the addresses "
                 "at which etcd serves clients; 2379 is the usual port",
                 endpoint, Printable(Message(status)));
  }
  if (Message(status).find("database space exceeded") != std::string_view::npos) {
    return Error(StatusCode::kResourceExhausted,
                 "etcd {} has used up its disk quota: turn on its auto-compaction, then compact, "
                 "defragment and disarm the alarm (etcdctl)",
                 endpoint);
  }
  const std::string from = fmt::format("etcd {}", endpoint);
  // What gRPC says of bytes that are none of its own, and etcd of what it did not expect.
  if (status.code() == StatusCode::kUnknown || status.code() == StatusCode::kInternal)
    return Error(StatusCode::kUnavailable, "{}: {}", from, Printable(Message(status)));
  return Prefixed(status, from);
}

void Fill(const EtcdTransaction& from, pb::TxnRequest* to) {
  for (const EtcdTransaction::Condition& condition : from.when) {
    if (condition.mod_revision.has_value()) {
      pb::Compare* compare = to->add_compare();
      compare->set_key(condition.key);
      compare->set_target(pb::Compare::MOD);
      compare->set_mod_revision(*condition.mod_revision);
    }
    if (condition.value.has_value()) {
      pb::Compare* compare = to->add_compare();
      compare->set_key(condition.key);
      compare->set_target(pb::Compare::VALUE);
      compare->set_value(*condition.value);
    }
  }
  for (const auto& [key, value] : from.put) {
    pb::PutRequest* put = to->add_success()->mutable_request_put();
    put->set_key(key);
    put->set_value(value);
  }
  for (const std::string& key : from.drop)
    to->add_success()->mutable_request_delete_range()->set_key(key);
  for (const auto& [first, end] : from.drop_range) {
    pb::DeleteRangeRequest* drop = to->add_success()->mutable_request_delete_range();
    drop->set_key(first);
    drop->set_range_end(end);
  }
}

EtcdRow RowOf(const pb::KeyValue& kv) {
  return {.key = kv.key(), .value = kv.value(), .mod_revision = kv.mod_revision()};
}

Status CheckVersion(const std::string& version, const std::string& endpoint) {
  const size_t dot = version.find('.');
  const size_t end = version.find('.', dot == std::string::npos ? dot : dot + 1);
  const auto major = ParseNumber<uint32_t>(version.substr(0, dot));
  const auto minor = dot == std::string::npos
                         ? std::nullopt
                         : ParseNumber<uint32_t>(version.substr(dot + 1, end - dot - 1));
  if (major == 3U && minor.has_value() && *minor >= kMinorLeast) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "etcd {} has version \"{}\": 3.{} to 3.x are supported", endpoint,
               Printable(version), kMinorLeast);
}

}  // namespace

struct EtcdClient::Impl {
  explicit Impl(const std::string& endpoints) : members(endpoints, kMessageBytesMax) {
    for (size_t i = 0; i < members.size(); ++i) {
      const auto& channel = members.channel(i);
      stubs.push_back(
          {.kv = pb::KV::NewStub(channel), .maintenance = pb::Maintenance::NewStub(channel)});
      calls.push_back(std::make_unique<UnaryCalls>(channel));
    }
  }

  struct Stubs {
    std::unique_ptr<pb::KV::Stub> kv;
    std::unique_ptr<pb::Maintenance::Stub> maintenance;
  };

  template <typename MakeCall>
  Status Call(Deadline deadline, const MakeCall& make) {
    EMS_RETURN_IF_ERROR(members.fault());
    const size_t i = members.Pick(deadline);
    const Status status = Explain(
        calls[i]->Call(deadline,
                       [&](grpc::ClientContext* context) { return make(stubs[i], context); }),
        members.address(i));
    if (status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kDeadlineExceeded ||
        status.code() == StatusCode::kUnimplemented)
      members.Leave(i);
    return status;
  }

  ChannelList members;
  std::vector<Stubs> stubs;
  std::vector<std::unique_ptr<UnaryCalls>> calls;
};

EtcdClient::EtcdClient(const std::string& endpoints) : impl_(std::make_unique<Impl>(endpoints)) {}

EtcdClient::~EtcdClient() = default;

void EtcdClient::Close() {
  for (const auto& calls : impl_->calls) calls->Close();
}

Status EtcdClient::Check(Deadline deadline) {
  pb::StatusResponse reply;
  EMS_RETURN_IF_ERROR(
      impl_->Call(deadline, [&](const Impl::Stubs& stubs, grpc::ClientContext* context) {
        return stubs.maintenance->Status(context, pb::StatusRequest(), &reply);
      }));
  EMS_RETURN_IF_ERROR(CheckVersion(reply.version(), "at etcd.endpoints"));
  // Whether it answers without a user.
  return Range("/", "", 1, 0, deadline).status();
}

Result<EtcdPage> EtcdClient::Range(const std::string& first, const std::string& end, int64_t limit,
                                   int64_t revision, Deadline deadline) {
  pb::RangeRequest request;
  request.set_key(first);
  request.set_range_end(end);
  request.set_limit(limit);
  request.set_revision(revision);
  pb::RangeResponse reply;
  EMS_RETURN_IF_ERROR(
      impl_->Call(deadline, [&](const Impl::Stubs& stubs, grpc::ClientContext* context) {
        return stubs.kv->Range(context, request, &reply);
      }));
  EtcdPage page{.rows = {}, .more = reply.more(), .revision = reply.header().revision()};
  for (const pb::KeyValue& kv : reply.kvs()) page.rows.push_back(RowOf(kv));
  return page;
}

Result<bool> EtcdClient::Commit(const EtcdTransaction& transaction, Deadline deadline) {
  pb::TxnRequest request;
  Fill(transaction, &request);
  pb::TxnResponse reply;
  EMS_RETURN_IF_ERROR(
      impl_->Call(deadline, [&](const Impl::Stubs& stubs, grpc::ClientContext* context) {
        return stubs.kv->Txn(context, request, &reply);
      }));
  return reply.succeeded();
}

std::string KeyBehind(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

}  // namespace ems::controller
