// What must hold: namespaces come, change and go as told, and what cannot be is refused before or
// by the controller; a controller that has just started is waited for.
#include <grpcpp/grpcpp.h>

#include <atomic>

#include "proto/controller.grpc.pb.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using NamespaceCommandsTest = EmsctlTest;

TEST_F(NamespaceCommandsTest, CreateUpdateListDelete) {
  const auto made =
      RunJson({"namespace", "create", "chat", "--dram-quota", "64MiB", "--checksum", "sampled"});
  EXPECT_EQ(made["dram_quota_bytes"], 64 << 20);
  const auto changed = RunJson({"namespace", "update", "chat", "--dram-reserved", "1MiB"});
  EXPECT_EQ(changed["dram_reserved_bytes"], 1 << 20);
  EXPECT_EQ(changed["dram_quota_bytes"], 64 << 20);
  EXPECT_EQ(changed["checksum"], "sampled");
  EXPECT_EQ(changed["id"], made["id"]);
  EXPECT_THAT(Run({"namespace", "list"}).out, HasSubstr("chat"));
  EXPECT_EQ(RunJson({"namespace", "delete", "chat"})["deleted"], "chat");
  EXPECT_EQ(Run({"namespace", "delete", "chat"}).exit_code, 3);
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
  EXPECT_EQ(Run({"namespace", "update", "default"}).exit_code, 2);
}

TEST_F(NamespaceCommandsTest, ControllerRefusesABadName) {
  EXPECT_EQ(Run({"namespace", "create", "no spaces"}).exit_code, 1);
}

TEST_F(NamespaceCommandsTest, ChangesAreMadeInTheClusterThatIsMeantAndNameIt) {
  ExpectRefused({"namespace", "create", "mine"});
  EXPECT_THAT(Run({"namespace", "list"}).out, ::testing::Not(HasSubstr("mine")));
  EXPECT_EQ(RunJson({"namespace", "create", "mine", "--cluster", OwnId()})["cluster"], OwnId());
  ExpectRefused({"namespace", "update", "mine", "--dram-quota", "1GiB"});
  EXPECT_EQ(RunJson({"namespace", "update", "mine", "--dram-quota", "1GiB"})["cluster"], OwnId());
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
