// What must hold: namespaces come, change and go as told, and what cannot be is refused before or
// by the controller; a controller that has just started is waited for.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <csignal>
#include <map>

#include "proto/controller.grpc.pb.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using NamespaceCommandsTest = EmsctlTest;

TEST_F(NamespaceCommandsTest, CreateSetListShowDelete) {
  const auto made =
      RunJson({"namespace", "create", "chat", "--dram-quota", "64MiB", "--checksum", "sampled"});
  EXPECT_EQ(made["dram_quota_bytes"], 64 << 20);
  const auto changed = RunJson({"namespace", "set", "chat", "--dram-reserved", "1MiB"});
  EXPECT_EQ(changed["dram_reserved_bytes"], 1 << 20);
  EXPECT_EQ(changed["dram_quota_bytes"], 64 << 20);
  EXPECT_EQ(changed["checksum"], "sampled");
  EXPECT_EQ(changed["id"], made["id"]);
  EXPECT_THAT(Run({"namespace", "list"}).out, HasSubstr("chat"));
  const auto shown = RunJson({"ns", "show", "chat"});
  EXPECT_EQ(shown["dram_quota_bytes"], 64 << 20);
  EXPECT_EQ(shown["objects"], 0);
  EXPECT_EQ(Run({"ns", "show", "nobody"}).exit_code, 3);
  EXPECT_EQ(RunJson({"namespace", "delete", "chat"})["deleted"], "chat");
  EXPECT_EQ(Run({"namespace", "delete", "chat"}).exit_code, 3);
}

TEST_F(NamespaceCommandsTest, TheListHasWhatTheyHold) {
  RunJson({"namespace", "create", "used"});
  const auto client = cluster_->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ((*client)->Put("key", std::string_view("value")), OkStatus());  // in "default"
  std::map<std::string, nlohmann::json> found;
  for (const auto& one : RunJson({"namespace", "list"})) found[one["name"]] = one;
  EXPECT_EQ(found["default"]["objects"], 1);
  EXPECT_EQ(found["default"]["dram_used_bytes"], 5);
  EXPECT_EQ(found["used"]["objects"], 0);
  const std::string text = Run({"ns", "list"}).out;
  EXPECT_THAT(text, HasSubstr("objects"));
  EXPECT_THAT(text, HasSubstr("5 B"));
}

TEST_F(NamespaceCommandsTest, UsageOfAServerThatDoesNotAnswerIsSaidToBeMissing) {
  cluster_->server(0).Signal(SIGSTOP);
  const auto ran = Run({"--timeout", "0.5", "namespace", "list"});
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, HasSubstr("note: server server-0 is not counted: "));
  EXPECT_THAT(ran.out, HasSubstr("default"));
}

TEST_F(NamespaceCommandsTest, NamesAreTakenOnce) {
  RunJson({"namespace", "create", "twice"});
  EXPECT_EQ(Run({"namespace", "create", "twice", "--dram-quota", "1GiB"}).exit_code, 1);
}

TEST_F(NamespaceCommandsTest, BadFlagsAreUsageErrors) {
  EXPECT_EQ(Run({"namespace"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create", "a", "--durability", "tape"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create", "a", "--dram-quota", "lots"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "set", "default"}).exit_code, 2);
}

TEST_F(NamespaceCommandsTest, ControllerRefusesABadName) {
  EXPECT_EQ(Run({"namespace", "create", "no spaces"}).exit_code, 1);
}

TEST_F(NamespaceCommandsTest, ChangesAreMadeInTheClusterThatIsMeantAndNameIt) {
  ExpectRefused({"namespace", "create", "mine"});
  EXPECT_THAT(Run({"namespace", "list"}).out, ::testing::Not(HasSubstr("mine")));
  EXPECT_EQ(RunJson({"namespace", "create", "mine", "--cluster", OwnId()})["cluster"], OwnId());
  ExpectRefused({"namespace", "set", "mine", "--dram-quota", "1GiB"});
  EXPECT_EQ(RunJson({"namespace", "set", "mine", "--dram-quota", "1GiB"})["cluster"], OwnId());
  ExpectRefused({"namespace", "delete", "mine"});
  EXPECT_THAT(Run({"namespace", "delete", "mine"}).out, HasSubstr("cluster " + OwnId()));
}

// Answers the first calls as a controller that has just started, or that has lost its disk.
class PutsOff final : public v1::Controller::Service {
 public:
  PutsOff(int times, std::string why) : times_(times), why_(std::move(why)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  grpc::Status CreateNamespace(grpc::ServerContext*, const v1::CreateNamespaceRequest* request,
                               v1::Namespace* reply) override {
    if (++asked <= times_) return {grpc::StatusCode::UNAVAILABLE, why_};
    reply->set_id(7);
    reply->set_generation(1);
    reply->set_name(request->name());
    return grpc::Status::OK;
  }
  std::atomic<int> asked{0};

 private:
  const int times_;
  const std::string why_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(NamespaceCommandsTest, AControllerThatHasJustStartedIsAskedAgain) {
  PutsOff controller(2, "starting: servers are heard first");
  const auto ran =
      RunBare({"--controller", controller.address(), "--timeout", "20", "ns", "create", "chat"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("chat"));
  EXPECT_EQ(controller.asked, 3);
}

TEST_F(NamespaceCommandsTest, AChangeThatMayHaveBeenMadeIsNotMadeAgain) {
  PutsOff controller(2, "the disk refuses");
  const auto ran = RunBare({"--controller", controller.address(), "ns", "create", "chat"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_THAT(ran.out, HasSubstr("the disk refuses"));
  EXPECT_EQ(controller.asked, 1);
}

}  // namespace
}  // namespace ems::emsctl
