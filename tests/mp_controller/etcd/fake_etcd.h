#pragma once
// An etcd in this process: rows, revisions and guarded transactions as etcd has them, in memory,
// and what can go wrong with it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "proto/etcd.grpc.pb.h"

namespace ems::controller {

// Threading: thread-safe.
class FakeEtcd final {
 public:
  enum class Mood {
    kWell,
    kSilent,     // nothing is carried out, and nothing answered
    kForgetful,  // transactions are carried out, and not answered
    kLate,       // transactions are not answered, and carried out by SendLate()
    kGuarded,    // users are asked for
    kReplaced,   // something else is at its address, which does not know its calls
  };

  FakeEtcd() : kv_(this), maintenance_(this) { Start(); }
  ~FakeEtcd() { Stop(); }
  FakeEtcd(const FakeEtcd&) = delete;
  FakeEtcd& operator=(const FakeEtcd&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Stop() {
    Set(Mood::kWell);
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&kv_);
    builder.RegisterService(&maintenance_);
    builder.SetMaxReceiveMessageSize(2 << 20);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }

  void Set(Mood mood) {
    {
      auto state = state_.Lock();
      state->mood = mood;
    }
    changed_.notify_all();
  }
  void SetVersion(const std::string& version) {
    auto state = state_.Lock();
    state->version = version;
  }
  // Carries out what came while it was kLate; how many of them did something.
  int SendLate() {
    auto state = state_.Lock();
    int done = 0;
    for (const auto& request : state->late) done += Apply(request, &*state) ? 1 : 0;
    state->late.clear();
    return done;
  }

  std::map<std::string, std::string> rows() {
    auto state = state_.Lock();
    std::map<std::string, std::string> rows;
    for (const auto& [key, row] : state->rows) rows[key] = row.value;
    return rows;
  }
  void Put(const std::string& key, const std::string& value) {
    auto state = state_.Lock();
    state->rows[key] = {value, ++state->revision};
  }
  void Clear() {
    auto state = state_.Lock();
    state->rows.clear();
    ++state->revision;
  }
  // How many transactions are carried out from now on before it turns kSilent; -1: all.
  void SilentAfter(int transactions) {
    auto state = state_.Lock();
    state->silent_after = transactions;
  }
  int transactions() {
    auto state = state_.Lock();
    return state->transactions;
  }

 private:
  struct Row {
    std::string value;
    int64_t mod_revision = 0;
  };
  struct State {
    Mood mood = Mood::kWell;
    std::string version = "3.4.23";
    std::map<std::string, Row> rows;
    int64_t revision = 1;
    int silent_after = -1;
    int transactions = 0;
    std::vector<etcdserverpb::TxnRequest> late;
  };

  static bool Holds(const etcdserverpb::Compare& compare, const State& state) {
    const auto row = state.rows.find(compare.key());
    if (compare.target() == etcdserverpb::Compare::VALUE)
      return row != state.rows.end() && row->second.value == compare.value();
    EXPECT_EQ(compare.target(), etcdserverpb::Compare::MOD);
    return (row == state.rows.end() ? 0 : row->second.mod_revision) == compare.mod_revision();
  }
  static bool Apply(const etcdserverpb::TxnRequest& request, State* state) {
    for (const auto& compare : request.compare()) {
      if (!Holds(compare, *state)) return false;
    }
    ++state->revision;
    for (const auto& op : request.success()) {
      if (op.has_request_put()) {
        state->rows[op.request_put().key()] = {op.request_put().value(), state->revision};
      } else {
        const auto& drop = op.request_delete_range();
        if (drop.range_end().empty()) {
          state->rows.erase(drop.key());
        } else {
          state->rows.erase(state->rows.lower_bound(drop.key()),
                            state->rows.lower_bound(drop.range_end()));
        }
      }
    }
    return true;
  }
  grpc::Status WaitForCancel(grpc::ServerContext* context) {
    auto state = state_.Lock();
    while (!context->IsCancelled() && state->mood != Mood::kWell)
      state.WaitFor(changed_, std::chrono::milliseconds(5), [](const State&) { return false; });
    return {grpc::StatusCode::UNAVAILABLE, "etcdserver: request timed out"};
  }
  // What is wrong with etcd; OK: nothing.
  grpc::Status Trouble(grpc::ServerContext* context) {
    auto state = state_.Lock();
    const Mood mood = state->mood;
    state.Unlock();
    if (mood == Mood::kSilent) return WaitForCancel(context);
    if (mood == Mood::kReplaced) return {grpc::StatusCode::UNIMPLEMENTED, "status: 404"};
    if (mood == Mood::kGuarded)
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"};
    return grpc::Status::OK;
  }

  class Kv final : public etcdserverpb::KV::Service {
   public:
    explicit Kv(FakeEtcd* etcd) : etcd_(etcd) {}
    grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                       etcdserverpb::RangeResponse* reply) override {
      const grpc::Status trouble = etcd_->Trouble(context);
      if (!trouble.ok()) return trouble;
      auto state = etcd_->state_.Lock();
      reply->mutable_header()->set_revision(state->revision);
      const std::string end =
          request->range_end().empty() ? request->key() + '\0' : request->range_end();
      for (auto row = state->rows.lower_bound(request->key());
           row != state->rows.end() && row->first < end; ++row) {
        if (request->limit() > 0 && reply->kvs_size() >= request->limit()) {
          reply->set_more(true);
          break;
        }
        auto* kv = reply->add_kvs();
        kv->set_key(row->first);
        kv->set_value(row->second.value);
        kv->set_mod_revision(row->second.mod_revision);
      }
      return grpc::Status::OK;
    }
    grpc::Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                     etcdserverpb::TxnResponse* reply) override {
      const grpc::Status trouble = etcd_->Trouble(context);
      if (!trouble.ok()) return trouble;
      if (request->success_size() > 128 || request->ByteSizeLong() > 1'572'864)
        return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: too much in one request"};
      auto state = etcd_->state_.Lock();
      if (state->mood == Mood::kLate) {
        state->late.push_back(*request);
        state.Unlock();
        return etcd_->WaitForCancel(context);
      }
      if (state->silent_after == 0) state->mood = Mood::kSilent;
      if (state->mood == Mood::kSilent) {
        state.Unlock();
        return etcd_->WaitForCancel(context);
      }
      if (state->silent_after > 0) --state->silent_after;
      ++state->transactions;
      reply->set_succeeded(Apply(*request, &*state));
      reply->mutable_header()->set_revision(state->revision);
      const bool forgets = state->mood == Mood::kForgetful;
      state.Unlock();
      return forgets ? etcd_->WaitForCancel(context) : grpc::Status::OK;
    }

   private:
    FakeEtcd* const etcd_;
  };
  class Maintenance final : public etcdserverpb::Maintenance::Service {
   public:
    explicit Maintenance(FakeEtcd* etcd) : etcd_(etcd) {}
    grpc::Status Status(grpc::ServerContext* context, const etcdserverpb::StatusRequest*,
                        etcdserverpb::StatusResponse* reply) override {
      auto state = etcd_->state_.Lock();
      reply->set_version(state->version);
      const bool silent = state->mood == Mood::kSilent;
      state.Unlock();
      return silent ? etcd_->WaitForCancel(context) : grpc::Status::OK;
    }

   private:
    FakeEtcd* const etcd_;
  };

  Guarded<State> state_;
  std::condition_variable changed_;
  Kv kv_;
  Maintenance maintenance_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ems::controller
