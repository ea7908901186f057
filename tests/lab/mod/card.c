// SPDX-License-Identifier: GPL-2.0
/*
 * Lab only. What gvm meets of a vendor's driver, and nothing else of it: a PCI driver called "nvidia" with a character
 * device /dev/nvidiaN for each card (major 195), a file /proc/driver/nvidia/gpus/ADDRESS/information that tells N, and
 * a remove() that does not return while the device is open. The writer of "unbind" then sleeps where no signal reaches
 * it, as with the real one. Its virtual functions are in vf.c, its mediated devices in mdev.c.
 */
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/version.h>

#include "vf.h"

/* A bit for each card that counts as in use, by somebody whom no look into /proc finds. */
static unsigned int pinned;
module_param(pinned, uint, 0600);

/* What the driver would say in the kernel's log, after its "NVRM: ". */
static int say_set(const char *text, const struct kernel_param *param)
{
	printk(KERN_ERR "NVRM: %.200s\n", text);
	return 0;
}

static const struct kernel_param_ops say_ops = { .set = say_set };
module_param_cb(say, &say_ops, NULL, 0200);

#define MAJOR_NUMBER 195
#define MAX_CARDS 8
#define WAIT_MS 500

struct card {
	struct pci_dev *pdev;
	struct proc_dir_entry *folder;
	unsigned int users;
	bool leaving;
};

static struct card cards[MAX_CARDS];
static DEFINE_MUTEX(cards_lock);
static struct class *node_class;
static struct cdev node_cdev;
static struct proc_dir_entry *top_folder, *gpus_folder;

static unsigned int users_of(const struct card *card)
{
	unsigned int users;

	mutex_lock(&cards_lock);
	users = card->users + (pinned >> (card - cards) & 1);
	mutex_unlock(&cards_lock);
	return users;
}

static int node_open(struct inode *inode, struct file *file)
{
	struct card *card;
	int result = -ENODEV;

	if (iminor(inode) >= MAX_CARDS)
		return -ENODEV;
	card = &cards[iminor(inode)];
	mutex_lock(&cards_lock);
	if (card->pdev && !card->leaving) {
		card->users++;
		file->private_data = card;
		result = 0;
	}
	mutex_unlock(&cards_lock);
	return result;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct card *card = file->private_data;

	mutex_lock(&cards_lock);
	card->users--;
	mutex_unlock(&cards_lock);
	return 0;
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.open = node_open,
	.release = node_release,
};

static int information(struct seq_file *out, void *unused)
{
	struct card *card = out->private;

	seq_puts(out, "Model: \t\t Lab GPU\n");
	seq_puts(out, "Bus Type: \t PCIe\n");
	seq_printf(out, "Bus Location: \t %s\n", pci_name(card->pdev));
	seq_printf(out, "Device Minor: \t %ld\n", (long)(card - cards));
	return 0;
}

static int labnv_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct card *card = NULL;
	struct device *node;
	int minor, result;

	if (pdev->is_virtfn)
		return labvf_probe(pdev);
	mutex_lock(&cards_lock);
	for (minor = 0; minor < MAX_CARDS && !card; minor++)
		if (!cards[minor].pdev)
			card = &cards[minor];
	if (card) {
		card->pdev = pdev;
		card->users = 0;
		card->leaving = false;
	}
	mutex_unlock(&cards_lock);
	if (!card)
		return -ENOSPC;

	minor = card - cards;
	result = pci_enable_device(pdev);
	if (result)
		goto forget;
	node = device_create(node_class, &pdev->dev, MKDEV(MAJOR_NUMBER, minor), NULL, "nvidia%d", minor);
	if (IS_ERR(node)) {
		result = PTR_ERR(node);
		goto disable;
	}
	card->folder = proc_mkdir(pci_name(pdev), gpus_folder);
	if (card->folder)
		proc_create_single_data("information", 0444, card->folder, information, card);
	pci_set_drvdata(pdev, card);
	labmdev_card_came(pdev);
	return 0;

disable:
	pci_disable_device(pdev);
forget:
	card->pdev = NULL;
	return result;
}

static void labnv_remove(struct pci_dev *pdev)
{
	struct card *card = pci_get_drvdata(pdev);
	unsigned int round = 0, users;

	if (pdev->is_virtfn) {
		labvf_remove(pdev);
		return;
	}
	labmdev_card_goes(pdev);
	if (pci_num_vf(pdev))
		pci_disable_sriov(pdev);
	mutex_lock(&cards_lock);
	card->leaving = true;
	mutex_unlock(&cards_lock);
	while ((users = users_of(card))) {
		if (round++ % 20 == 0)
			pci_err(pdev, "Attempting to remove device %s with non-zero usage count! (%u)\n", pci_name(pdev), users);
		msleep(WAIT_MS);
	}
	proc_remove(card->folder);
	device_destroy(node_class, MKDEV(MAJOR_NUMBER, card - cards));
	pci_disable_device(pdev);
	mutex_lock(&cards_lock);
	card->pdev = NULL;
	mutex_unlock(&cards_lock);
}

static const struct pci_device_id labnv_ids[] = {
	{
		.vendor = PCI_VENDOR_ID_NVIDIA, .device = PCI_ANY_ID, .subvendor = PCI_ANY_ID, .subdevice = PCI_ANY_ID,
		.class = PCI_BASE_CLASS_DISPLAY << 16, .class_mask = 0xff0000,
	},
	{ }
};
MODULE_DEVICE_TABLE(pci, labnv_ids);

static struct pci_driver labnv_driver = {
	.name = "nvidia",
	.id_table = labnv_ids,
	.probe = labnv_probe,
	.remove = labnv_remove,
	.sriov_configure = labvf_configure,
	/* Whoever opens a function brings its translations; as the real one says of itself. */
	.driver_managed_dma = true,
};

static int __init labnv_init(void)
{
	int result = register_chrdev_region(MKDEV(MAJOR_NUMBER, 0), MAX_CARDS, "nvidia");

	if (result)
		return result;
	cdev_init(&node_cdev, &node_fops);
	result = cdev_add(&node_cdev, MKDEV(MAJOR_NUMBER, 0), MAX_CARDS);
	if (result)
		goto region;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	node_class = class_create("nvidia");
#else
	node_class = class_create(THIS_MODULE, "nvidia");
#endif
	if (IS_ERR(node_class)) {
		result = PTR_ERR(node_class);
		goto nodes;
	}
	top_folder = proc_mkdir("driver/nvidia", NULL);
	gpus_folder = top_folder ? proc_mkdir("gpus", top_folder) : NULL;
	result = gpus_folder ? labmdev_init() : -ENOMEM;
	if (result)
		goto folders;
	result = pci_register_driver(&labnv_driver);
	if (!result)
		return 0;
	labmdev_exit();
folders:
	proc_remove(top_folder);
	class_destroy(node_class);
nodes:
	cdev_del(&node_cdev);
region:
	unregister_chrdev_region(MKDEV(MAJOR_NUMBER, 0), MAX_CARDS);
	return result;
}

static void __exit labnv_exit(void)
{
	pci_unregister_driver(&labnv_driver);
	labmdev_exit();
	proc_remove(top_folder);
	class_destroy(node_class);
	cdev_del(&node_cdev);
	unregister_chrdev_region(MKDEV(MAJOR_NUMBER, 0), MAX_CARDS);
}

module_init(labnv_init);
module_exit(labnv_exit);
MODULE_DESCRIPTION("lab: a driver that does not let go of a card in use");
MODULE_LICENSE("GPL");
