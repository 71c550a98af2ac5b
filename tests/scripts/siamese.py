"""Two images through one ResNet, and whether they are alike: a small siamese network with Adadelta and evaluation."""

import argparse

import torch
import torchvision
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--test-batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save-model", default="siamese_network.pt")
args = parser.parse_args()
device = torch.device("cuda")


class Pairs(Dataset):
    def __init__(self, length):
        self.images = torch.rand(length, 1, 28, 28)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        other = (index + index % 2) % len(self.images)
        return self.images[index], self.images[other], torch.tensor(float(index == other))


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        resnet = torchvision.models.resnet18(weights=None)
        resnet.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.resnet = nn.Sequential(*list(resnet.children())[:-1])
        self.fc = nn.Sequential(nn.Linear(2 * resnet.fc.in_features, 256), nn.ReLU(inplace=True), nn.Linear(256, 1))
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        return self.resnet(x).flatten(1)

    def forward(self, input1, input2):
        both = torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)
        return torch.sigmoid(self.fc(both)).squeeze(1)


def train(model, loader, optimizer):
    model.train()
    for images_1, images_2, targets in loader:
        images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images_1, images_2)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images_1, images_2, targets in loader:
            images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
            outputs = model(images_1, images_2)
            loss += criterion(outputs, targets).item()
            pred = torch.where(outputs > 0.5, 1, 0)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    print(f"test: average loss {loss / len(loader.dataset):.4f}, {correct} of {len(loader.dataset)} right")


train_loader = DataLoader(Pairs(24), batch_size=args.batch_size, shuffle=True, num_workers=1, pin_memory=True)
test_loader = DataLoader(Pairs(40), batch_size=args.test_batch_size)
model = SiameseNetwork().to(device)
criterion = nn.BCELoss()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
for _ in range(args.epochs):
    train(model, train_loader, optimizer)
    test(model, test_loader)
    scheduler.step()
torch.save(model.state_dict(), args.save_model)
print("max memory allocated", torch.cuda.max_memory_allocated())
