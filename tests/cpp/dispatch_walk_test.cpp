#include "call/dispatch_walk.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <memory>

#include "python_values.h"

namespace dutyfree::call {
namespace {

using observe::Path;
using observe::Reason;
using testing::Call;
using testing::evaluate;
using testing::tensor;

// Boxed kernels with a functor of their own, as Python kernels have. Never called: the walk only looks.
struct Kernel final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {}
};

torch::CppFunction kernel() { return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()); }

// An operator with custom_op's three kernels, made of the pieces that the dispatcher knows.
class Walk : public ::testing::Test {
 protected:
  Walk() : library_(torch::Library::DEF, "dutyfree_walk", std::nullopt, __FILE__, __LINE__) {
    library_.def("op(Tensor(a!) x, Tensor y) -> ()");
    impl("Autograd");
    impl("ADInplaceOrView");
    impl("CompositeExplicitAutograd");
    op_ = Operator::find("dutyfree_walk::op");
    know(KnownKernel::Role::Autograd, "Autograd", nullptr);
    know(KnownKernel::Role::ADInplaceOrView, "ADInplaceOrView", nullptr);
    know(KnownKernel::Role::Backend, "CompositeExplicitAutograd",
         std::make_shared<BackendKernel>(BackendKernel::Parts{
             .functions = evaluate("{None: len}"),
             .disabled = evaluate("set()"),
             .device_type = PyRef::steal(PyCell_New(Py_None)),
             .default_function = evaluate("len"),
             .unwrap = evaluate("lambda entry: (entry, None)"),
             .judge = evaluate("None"),
         }));
  }

  // A registration that lasts until the returned library dies.
  std::unique_ptr<torch::Library> impl_for_now(const char* key) {
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, "dutyfree_walk", std::nullopt, __FILE__, __LINE__);
    library->impl("op", torch::dispatch(c10::parseDispatchKey(key), kernel()));
    return library;
  }

  Decision decide(at::Tensor x, at::Tensor y) {
    Call call;
    call.positional(tensor(std::move(x))).positional(tensor(std::move(y)));
    CallValues values;
    return call::decide(*op_, call.arguments(), torch_compat::ThreadState::here(), values);
  }

  std::unique_ptr<Operator> op_;

 private:
  void impl(const char* key) { library_.impl("op", torch::dispatch(c10::parseDispatchKey(key), kernel())); }
  void know(KnownKernel::Role role, const char* key, std::shared_ptr<BackendKernel> backend) {
    call::KnownKernel kernel(role, op_->entry().kernelForDispatchKey(c10::parseDispatchKey(key)));
    kernel.backend = std::move(backend);
    op_->kernels().add(std::move(kernel));
  }

  torch::Library library_;
};

TEST_F(Walk, GoesDownToTheBodyOverKnownKernels) {
  const Decision decision = decide(at::ones({2}), at::ones({2}));
  EXPECT_EQ(decision.path, Path::Direct);
  EXPECT_TRUE(decision.below_autograd);
  EXPECT_TRUE(decision.bumps_versions);
  EXPECT_EQ(decision.kernels_crossed, 3);
  EXPECT_NE(decision.backend, nullptr);
}

TEST_F(Walk, AsksForARefreshUntilTheBodyIsKnown) {
  const Decision first = decide(at::ones({2}), at::ones({2}));
  EXPECT_EQ(first.function, nullptr);
  ASSERT_TRUE(first.backend->refresh());
  EXPECT_EQ(decide(at::ones({2}), at::ones({2})).function, evaluate("len").get());
}

TEST_F(Walk, SeesAnOverrideAtTheNextCallAndItsRemovalToo) {
  for (const char* key : {"CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "CompositeExplicitAutograd"}) {
    EXPECT_EQ(decide(at::ones({2}), at::ones({2})).path, Path::Direct) << key;
    {
      const auto override_ = impl_for_now(key);
      const Decision decision = decide(at::ones({2}), at::ones({2}));
      EXPECT_EQ(decision.path, Path::PyTorch) << key;
      EXPECT_EQ(decision.reason, Reason::Kernel) << key;
    }
    EXPECT_EQ(decide(at::ones({2}), at::ones({2})).path, Path::Direct) << key;
  }
}

TEST_F(Walk, NamesTheKeyOfAnUnknownKernel) {
  const auto override_ = impl_for_now("CPU");
  EXPECT_EQ(decide(at::ones({2}), at::ones({2})).key, c10::DispatchKey::CPU);
}

TEST_F(Walk, SeesAKernelForAKeyThatWasAFallthrough) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_EQ(decide(at::ones({2}), at::ones({2})).path, Path::Direct);
  {
    const auto rule = impl_for_now("AutocastCPU");
    const Decision decision = decide(at::ones({2}), at::ones({2}));
    EXPECT_EQ(decision.reason, Reason::Kernel);
    EXPECT_EQ(decision.key, c10::DispatchKey::AutocastCPU);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST_F(Walk, LeavesGradientsToPyTorchWhereItsKernelIsNotKnownToTheEnd) {
  const at::Tensor leaf = at::ones({2}).requires_grad_(true);
  const Decision decision = decide(at::ones({2}), leaf);
  EXPECT_EQ(decision.path, Path::PyTorch);
  EXPECT_EQ(decision.reason, Reason::GradientForm);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(decide(at::ones({2}), leaf).path, Path::Direct);
}

TEST_F(Walk, HonoursKeysThatTheThreadExcludes) {
  const at::Tensor leaf = at::ones({2}).requires_grad_(true);
  const at::AutoDispatchBelowADInplaceOrView below;
  const Decision decision = decide(leaf, leaf);
  EXPECT_EQ(decision.path, Path::Direct);
  EXPECT_FALSE(decision.below_autograd);
  EXPECT_FALSE(decision.bumps_versions);
  EXPECT_EQ(decision.kernels_crossed, 1);
}

TEST_F(Walk, LeavesTheThreadWhereItIncludesAnotherKey) {
  const at::Tensor x = at::ones({2});
  const c10::impl::IncludeDispatchKeyGuard functorch(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  const Decision decision = decide(x, x);
  EXPECT_EQ(decision.reason, Reason::ThreadState);
  EXPECT_EQ(decision.key, c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

TEST_F(Walk, RefusesToMutateAnInferenceTensorOutsideInferenceMode) {
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = at::ones({2});
    EXPECT_EQ(decide(inference, inference).path, Path::Direct);
  }
  EXPECT_EQ(decide(inference, at::ones({2})).reason, Reason::InferenceMutation);
  EXPECT_EQ(decide(at::ones({2}), inference).path, Path::Direct);
}

TEST_F(Walk, KnowsNothingOnceTheKernelsAreForgotten) {
  EXPECT_EQ(decide(at::ones({2}), at::ones({2})).path, Path::Direct);
  op_->kernels().clear();
  EXPECT_EQ(decide(at::ones({2}), at::ones({2})).reason, Reason::Kernel);
}

TEST(WalkAfterTheLibrary, FindsNoKernelAndDoesNotCrash) {
  std::unique_ptr<Operator> op;
  {
    torch::Library library(torch::Library::DEF, "dutyfree_gone", std::nullopt, __FILE__, __LINE__);
    library.def("op(Tensor x) -> ()");
    op = Operator::find("dutyfree_gone::op");
  }
  Call call;
  call.positional(tensor());
  CallValues values;
  EXPECT_EQ(decide(*op, call.arguments(), torch_compat::ThreadState::here(), values).reason, Reason::Kernel);
}

}  // namespace
}  // namespace dutyfree::call
